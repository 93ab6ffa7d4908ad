"""Mistakes in causal masks and in which part of the batch a layer attends along."""

from mha_core.clinic.families.mask_forms import LIBRARY
from mha_core.clinic.recipe import LAYER
from mha_core.clinic.record import Mistake

HIDING = (
    Mistake(
        name="one_token_ahead",
        title="The diagonal one step too far",
        kind="causal",
        symptoms=("leaks",),
        steps=("visible",),
        wrong="mask = keep[:, None, None, :] & torch.ones(Sq, Sk).tril(Sk - Sq + 1).bool()",
        right="mask = keep[:, None, None, :] & torch.ones(Sq, Sk).tril(Sk - Sq).bool()",
        needs=("causal", "tokens"),
        check="causality",
        notice="Training loss near 0, generation useless: the next token is read, not predicted.",
        fix="tril(0) where queries and keys are the same tokens.",
        lesson="One cell per row is enough to give the answer away.",
    ),
    Mistake(
        name="top_left_diagonal",
        title="The diagonal starts top left with more keys than queries",
        kind="causal",
        symptoms=("trains_poorly", "nothing"),
        steps=("visible",),
        wrong="mask = keep[:, None, None, :] & torch.ones(Sq, Sk).tril().bool()",
        right="mask = keep[:, None, None, :] & torch.ones(Sq, Sk).tril(Sk - Sq).bool()",
        needs=("cross", "causal"),
        check="decode",
        notice="A decoding step differs from the full pass: the newest query sees only the oldest keys.",
        fix="tril(Sk - Sq): the last query sees the last key.",
        lesson="is_causal=True of torch aligns top left, flash-attention since 2.1 bottom right. State it.",
    ),
    Mistake(
        name="causal_only_when_fused",
        title="Causal in the fast path, not in the other",
        kind="causal",
        symptoms=("leaks",),
        steps=("mask",),
        wrong="wants_weights = True\n"
        "if not wants_weights:  # only the fast path got the flag\n"
        "    scores = scores.masked_fill(~mask, fill)",
        right="wants_weights = True\nscores = scores.masked_fill(~mask, fill)",
        needs=("causal", "tokens"),
        check="causality",
        notice="Asking for the weights, or turning dropout on, makes the metric almost perfect.",
        fix="Build the mask once, before the paths part, and test each path.",
        lesson="Two paths are two layers: train and eval, weights or not, dropout or not, all must agree.",
    ),
    Mistake(
        name="batch_second",
        title="batch_first left at its default",
        kind="batch_first",
        symptoms=("batch_changes", "trains_poorly"),
        steps=LAYER,
        wrong="output, weights = mha(query, key, value, batch_first=False)  # the default",
        right="output, weights = mha(query, key, value, batch_first=True)",
        needs=("sequences", "tokens", "unmasked", "self", *LIBRARY),
        check="batch_independence",
        notice="Sequences attend to one another. Maps are B x B, not S x S.",
        fix="batch_first=True, and tests with B ≠ S.",
        lesson="(S, B, E) is the default of nn.MultiheadAttention and of the encoder layer; with B = S even masks fit.",
    ),
)
