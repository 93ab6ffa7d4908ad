"""Mistakes about sizes: widths that do not divide, widths of the wrong tensor, lengths of the other side."""

from mha_core.clinic.record import Mistake

SIZES = (
    Mistake(
        name="heads_do_not_divide",
        title="A number of heads that does not divide the width",
        kind="divisibility",
        symptoms=("shape_error",),
        steps=("split",),
        wrong="H = odd_heads  # does not divide the width\n"
        "D = q.size(-1) // H\n"
        "q = q.view(B, Sq, H, D).transpose(1, 2)\n"
        "k = k.view(B, Sk, H, D).transpose(1, 2)\n"
        "v = v.view(B, Sk, H, D).transpose(1, 2)",
        right="q = q.view(B, Sq, H, D).transpose(1, 2)\n"
        "k = k.view(B, Sk, Hkv, D).transpose(1, 2)\n"
        "v = v.view(B, Sk, Hkv, D).transpose(1, 2)",
        notice="“shape … is invalid for input of size …”: the wanted shape holds a little less than the tensor has.",
        fix="Take a divisor of E, or give heads a width of their own: Linear(E, H·D) and Linear(H·D, E).",
        lesson="// drops the remainder without a word. E / H is a convention, not mathematics.",
    ),
    Mistake(
        name="joined_to_input_width",
        title="Heads joined to the width of the input",
        kind="divisibility",
        symptoms=("shape_error",),
        steps=("join",),
        wrong="joined = context.transpose(1, 2).reshape(B, Sq, query.size(-1))",
        right="joined = context.transpose(1, 2).reshape(B, Sq, H * D)",
        needs=("untied",),
        notice="Works while the input is as wide as all heads together, and only then.",
        fix="Take the layer's own H·D; only batch and length come from the input.",
        lesson="Two numbers that happen to be equal are not the same number.",
    ),
    Mistake(
        name="query_padding_in_cross",
        title="The queries' padding mask in cross-attention",
        kind="cross_dims",
        symptoms=("shape_error",),
        steps=("mask",),
        wrong="scores = scores.masked_fill(~keep_q[:, None, None, :], fill)",
        right="scores = scores.masked_fill(~keep[:, None, None, :], fill)",
        needs=("cross", "unmasked"),
        check="cross_attention",
        notice="Self-attention never complains; cross-attention stops as soon as Sq ≠ Sk.",
        fix="A padding mask belongs to the keys: (B, Sk), from the source side.",
        lesson="Rows of the scores are queries, columns are keys; only columns can be hidden.",
    ),
    Mistake(
        name="one_query_for_all",
        title="A query with batch 1 against a batch of keys",
        kind="cross_dims",
        symptoms=("batch_changes", "nothing"),
        steps=("project",),
        wrong="q = F.linear(query[:1], wq, bq).expand(B, -1, -1)\n"
        "k = F.linear(key, wk, bk)\n"
        "v = F.linear(value, wv, bv)\n"
        "q = q.contiguous()",
        right="q = F.linear(query, wq, bq)\nk = F.linear(key, wk, bk)\nv = F.linear(value, wv, bv)",
        needs=("sequences",),
        check="batch_independence",
        notice="A sequence's output depends on what stands first in the batch.",
        fix="Check that q, k and v have one batch size, and expand on purpose only.",
        lesson="Broadcasting makes 1 fit everything; torch's own fused kernel lets it pass as well.",
    ),
)
