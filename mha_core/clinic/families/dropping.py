"""Mistakes with dropout."""

from mha_core.clinic.record import Mistake

DROPPING = (
    Mistake(
        name="dropout_in_eval",
        title="Dropout stays on in evaluation",
        kind="dropout",
        symptoms=("batch_changes", "trains_poorly"),
        steps=("dropout",),
        wrong="weights = drop(weights, p)",
        right="weights = drop(weights, p if training else 0.0)",
        needs=("dropout",),
        check="determinism",
        evaluating=True,
        notice="Two evaluations of the same input differ.",
        fix="dropout_p=self.p if self.training else 0.0",
        lesson="F.scaled_dot_product_attention drops whatever it is told to; it knows nothing of eval().",
    ),
    Mistake(
        name="dropped_unscaled",
        title="Kept weights not scaled up",
        kind="dropout",
        symptoms=("trains_poorly", "nothing"),
        steps=("dropout",),
        wrong="weights = drop(weights, rate) * (1 - rate)",
        right="weights = drop(weights, rate)",
        needs=("dropout",),
        check="row_sums",
        notice="In training rows sum to 1 − p on average, in evaluation to 1.",
        fix="Divide what is kept by 1 − p, as nn.Dropout does.",
        lesson="Training and evaluation should agree on average.",
    ),
    Mistake(
        name="dropout_on_scores",
        title="Dropout on the scores",
        kind="dropout",
        symptoms=("trains_poorly", "nothing"),
        steps=("mask", "softmax", "empty_rows", "dropout"),
        wrong="scores = drop(scores, rate)\n"
        "weights = torch.softmax(scores.masked_fill(~mask, fill), dim=-1)\n"
        "weights = weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)",
        right="weights = torch.softmax(scores.masked_fill(~mask, fill), dim=-1)\n"
        "weights = weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)\n"
        "weights = drop(weights, rate)",
        needs=("dropout", "tokens"),
        notice="In training no weight is ever 0, and every row sums to 1.",
        fix="Drop weights, after the softmax.",
        lesson="A score of 0 is not “no attention” but an ordinary score.",
    ),
)
