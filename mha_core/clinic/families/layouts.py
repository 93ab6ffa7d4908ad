"""Mistakes in how weights are laid out in memory, and in how key/value heads are shared."""

from mha_core.clinic.record import Mistake

FUSED = (
    "b = None if bq is None else torch.cat([bq, bk, bv])\n"
    "qkv = F.linear(query, torch.cat([wq, wk, wv]), b)  # rows [q | k | v]\n"
)
LAYOUTS = (
    Mistake(
        name="stacked_read_as_interleaved",
        title="[q | k | v] read as q, k, v per head",
        kind="qkv_layout",
        symptoms=("trains_poorly", "nothing"),
        steps=("project", "split"),
        wrong=FUSED + "q, k, v = qkv.view(B, Sq, H, 3, D).permute(3, 0, 2, 1, 4)",
        right=FUSED + "q, k, v = qkv.view(B, Sq, 3, H, D).permute(2, 0, 3, 1, 4)",
        needs=("heads", "self", "ungrouped", "square_inputs"),
        notice="Only loaded weights suffer: compare with the outputs of the model they come from.",
        fix="Know the order of the file; permute rows (and the bias) once, at loading.",
        lesson="Both orders have the same shape. From scratch either learns; a trained one must match.",
    ),
    Mistake(
        name="keys_and_values_exchanged",
        title="k and v exchanged when loading",
        kind="qkv_layout",
        symptoms=("trains_poorly", "nothing"),
        steps=("init",),
        wrong="wk, wv = wv, wk  # the file has q, v, k\nbk, bv = bv, bk",
        right="wk, wv = wk, wv\nbk, bv = bk, bv",
        needs=("square_inputs",),
        notice="Harmless before training, wrong for trained weights: only reference outputs tell.",
        fix="A table of the order per model family.",
        lesson="Some families store q, v, k. Names in a file are a promise, not a proof.",
    ),
    Mistake(
        name="output_matrix_transposed",
        title="The output matrix loaded transposed",
        kind="qkv_layout",
        symptoms=("trains_poorly", "nothing"),
        steps=("output",),
        wrong="output = joined @ wo if bo is None else joined @ wo + bo",
        right="output = joined @ wo.T if bo is None else joined @ wo.T + bo",
        needs=("tied",),
        notice="Rectangular matrices stop with an error; this one is square and says nothing.",
        fix="Conv1D of GPT-2 keeps (in, out), nn.Linear (out, in): transpose all four.",
        lesson="A shape check cannot see the transpose of a square.",
    ),
    Mistake(
        name="repeat_for_groups",
        title="Shared heads repeated in the wrong order",
        kind="gqa",
        symptoms=("trains_poorly", "nothing"),
        steps=("share",),
        wrong="k = k.repeat(1, H // Hkv, 1, 1)\nv = v.repeat(1, H // Hkv, 1, 1)",
        right="k = k.repeat_interleave(H // Hkv, dim=1)\nv = v.repeat_interleave(H // Hkv, dim=1)",
        needs=("grouped", "tokens"),
        check="gqa",
        notice="Only loaded weights suffer. Change one key/value head and see which query heads move.",
        fix="repeat_interleave(H // Hkv, dim=1), or enable_gqa=True.",
        lesson="Neighbouring query heads share a head: 0 0 1 1, not 0 1 0 1.",
    ),
    Mistake(
        name="groups_along_tokens",
        title="Key/value heads repeated along the tokens",
        kind="gqa",
        symptoms=("shape_error",),
        steps=("share",),
        wrong="k = k.repeat_interleave(H // Hkv, dim=2)\nv = v.repeat_interleave(H // Hkv, dim=2)",
        right="k = k.repeat_interleave(H // Hkv, dim=1)\nv = v.repeat_interleave(H // Hkv, dim=1)",
        needs=("grouped",),
        check="gqa",
        notice="“The size of tensor a must match …”; with one key/value head it runs and repeats the tokens.",
        fix="Repeat the axis that holds the heads; look at k.shape afterwards.",
        lesson="(B, S, H, D) and (B, H, S, D) are both in use: a helper for one harms the other.",
    ),
)
