"""Mistakes in splitting channels into heads and joining them again."""

from mha_core.clinic.recipe import ATTEND
from mha_core.clinic.record import Mistake

HEADS = (
    Mistake(
        name="split_by_view",
        title="Heads split by a view alone",
        kind="head_split",
        symptoms=("trains_poorly", "nothing"),
        steps=("split",),
        wrong="q = q.view(B, H, Sq, D)\nk = k.view(B, Hkv, Sk, D)\nv = v.view(B, Hkv, Sk, D)",
        right="q = q.view(B, Sq, H, D).transpose(1, 2)\n"
        "k = k.view(B, Sk, Hkv, D).transpose(1, 2)\n"
        "v = v.view(B, Sk, Hkv, D).transpose(1, 2)",
        needs=("heads", "tokens", "wide_heads"),
        check="reach",
        notice="Shapes are equal and values differ: ask which inputs move an output, or compare with torch's layer.",
        fix="Cut the channels first, then exchange the axes: view(B, S, H, D).transpose(1, 2).",
        lesson="A view cannot move an axis: memory stays as it is, so each head got a stretch of the sequence.",
    ),
    Mistake(
        name="fold_heads_into_batch",
        title="Heads folded into the batch by a view",
        kind="head_split",
        symptoms=("trains_poorly", "nothing"),
        steps=ATTEND,
        wrong="q = q.reshape(B * H, -1, D)\n"
        "k = k.reshape(B * H, -1, D)\n"
        "v = v.reshape(B * H, -1, D)\n"
        "scores = (q @ k.transpose(-2, -1) * scale).view(B, H, Sq, Sk)\n"
        "weights = torch.softmax(scores.masked_fill(~mask, fill), dim=-1)\n"
        "joined = (weights.view(B * H, Sq, Sk) @ v).reshape(B, Sq, H * D)",
        right="q = q.view(B, Sq, H, D).transpose(1, 2).reshape(B * H, Sq, D)\n"
        "k = k.view(B, Sk, H, D).transpose(1, 2).reshape(B * H, Sk, D)\n"
        "v = v.view(B, Sk, H, D).transpose(1, 2).reshape(B * H, Sk, D)\n"
        "scores = (q @ k.transpose(-2, -1) * scale).view(B, H, Sq, Sk)\n"
        "weights = torch.softmax(scores.masked_fill(~mask, fill), dim=-1)\n"
        "joined = (weights.view(B * H, Sq, Sk) @ v).view(B, H, Sq, D).transpose(1, 2).reshape(B, Sq, H * D)",
        needs=("own", "heads", "tokens", "ungrouped", "unrotated", "wide_heads"),
        check="reach",
        notice="One head works, several get worse. The gradient of one output with respect to the input is 0 for most "
        "tokens.",
        fix="Bring the heads forward before folding: view, transpose, then reshape(B * H, S, D).",
        lesson="Every “head” saw only its own block of S / H tokens. Without a mask an output must depend on all.",
    ),
    Mistake(
        name="join_without_transpose",
        title="Heads joined without a transpose",
        kind="head_split",
        symptoms=("trains_poorly", "nothing"),
        steps=("join",),
        wrong="joined = context.reshape(B, Sq, H * D)",
        right="joined = context.transpose(1, 2).reshape(B, Sq, H * D)",
        needs=("heads", "tokens", "wide_heads"),
        check="reach",
        notice="The maps are right and the output is not: compare the output with a reference, not the weights.",
        fix="context.transpose(1, 2).reshape(B, Sq, H * D)",
        lesson="reshape copies where view would complain, so it also silences a missing transpose.",
    ),
    Mistake(
        name="view_after_transpose",
        title="view on a transposed tensor",
        kind="head_split",
        symptoms=("shape_error",),
        steps=("join",),
        wrong="joined = context.transpose(1, 2).view(B, Sq, H * D)",
        right="joined = context.transpose(1, 2).reshape(B, Sq, H * D)",
        needs=("heads", "tokens", "wide_heads"),
        notice="An error right after a transpose, sometimes only on another device or with another kernel.",
        fix="reshape, or contiguous().view.",
        lesson="view needs the elements in the order of the axes; a transpose only relabels them.",
    ),
    Mistake(
        name="shared_small_projection",
        title="Split first, one small projection for all heads",
        kind="head_split",
        symptoms=("trains_poorly", "nothing"),
        steps=("project", "split"),
        wrong="q = F.linear(query.view(B, Sq, H, D), wq[:D, :D]).transpose(1, 2)\n"
        "k = F.linear(key.view(B, Sk, H, D), wk[:D, :D]).transpose(1, 2)\n"
        "v = F.linear(value.view(B, Sk, H, D), wv[:D, :D]).transpose(1, 2)\n"
        "parameters = 3 * D * D + wo.numel()",
        right="q = F.linear(query, wq, bq).view(B, Sq, H, D).transpose(1, 2)\n"
        "k = F.linear(key, wk, bk).view(B, Sk, H, D).transpose(1, 2)\n"
        "v = F.linear(value, wv, bv).view(B, Sk, H, D).transpose(1, 2)\n"
        "parameters = 3 * E * E + wo.numel()",
        needs=("heads", "tied", "ungrouped", "square_inputs"),
        check="reach",
        reports=(("parameters", "weights in the four matrices", "numbers"),),
        notice="Far fewer parameters than 4·E·E, and each head reads only its own D channels of the input.",
        fix="Project with E x E matrices first, then split.",
        lesson="Heads are meant to see the whole token through matrices of their own.",
    ),
    Mistake(
        name="inferred_heads",
        title="Keys viewed with the query length, heads left to −1",
        kind="head_split",
        symptoms=("shape_error",),
        steps=("split",),
        wrong="q = q.view(B, Sq, H, D).transpose(1, 2)\n"
        "k = k.reshape(B, Sq, -1, D).transpose(1, 2)\n"
        "v = v.reshape(B, Sq, -1, D).transpose(1, 2)",
        right="q = q.view(B, Sq, H, D).transpose(1, 2)\n"
        "k = k.view(B, Sk, Hkv, D).transpose(1, 2)\n"
        "v = v.view(B, Sk, Hkv, D).transpose(1, 2)",
        needs=("cross", "heads", "unmasked"),
        check="cross_attention",
        notice="All tests with self-attention pass; the first run with Sq ≠ Sk stops.",
        fix="Use the length of the tensor itself, and never leave the number of heads to −1.",
        lesson="−1 swallows whatever does not fit: here it made Sk·H / Sq “heads”.",
    ),
)
