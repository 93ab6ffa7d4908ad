"""Mistakes that only small number formats show."""

from mha_core.clinic.record import Mistake

PRECISION = (
    Mistake(
        name="fill_beyond_half",
        title="−1e9 in half precision",
        kind="amp",
        symptoms=("shape_error",),
        steps=("mask",),
        wrong="scores = scores.masked_fill(~mask, -1e9)",
        right="scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)",
        needs=("causal", "half"),
        check="half_precision",
        notice="“value cannot be converted to type … without overflow”, in float16 only.",
        fix="torch.finfo(scores.dtype).min, or −inf.",
        lesson="float16 ends at 65,504. A number that “is infinity anyway” belongs to its format.",
    ),
    Mistake(
        name="scaled_after_product",
        title="Scaled after the product",
        kind="amp",
        symptoms=("loss_nan",),
        steps=("scores",),
        wrong="scores = q @ k.transpose(-2, -1) * scale",
        right="scores = (q * scale) @ k.transpose(-2, -1)",
        needs=("own", "half", "raw_overflow", "tokens"),
        check="half_precision",
        notice="NaN in float16 on some batches; float32 and bfloat16 are fine.",
        fix="Scale q first: the same numbers, √D earlier.",
        lesson="q·k alone passes 65,504 and is inf; inf − inf in the softmax is NaN.",
    ),
    Mistake(
        name="softmax_left_in_float32",
        title="Softmax in float32, not cast back",
        kind="amp",
        symptoms=("shape_error",),
        steps=("softmax", "empty_rows", "dropout", "values"),
        wrong="weights = torch.softmax(scores, dim=-1, dtype=torch.float32)\ncontext = weights @ v",
        right="weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype)\ncontext = weights @ v",
        needs=("low_precision",),
        check="half_precision",
        notice="“expected scalar type …” or “expected m1 and m2 to have the same dtype” at weights @ v.",
        fix=".to(v.dtype) after the softmax.",
        lesson="Summing in float32 is right; going back is part of it.",
    ),
)
