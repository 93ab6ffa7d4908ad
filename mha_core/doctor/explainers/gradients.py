"""Backward passes that fail or give NaN, and NaN met later."""

from __future__ import annotations

import re

from mha_core.doctor.explainers.answer import Explanation, Problem, Rule, rule, says

NO_EMPTY_ROW = "keep one key per row: keep = keep | ~keep.any(-1, keepdim=True), then zero those rows of the output"


def nan_in_backward(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain anomaly detection's finding."""
    name = match["name"].removesuffix("Backward0").removesuffix("Backward")
    if re.search("softmax", name, re.IGNORECASE):
        said = (
            f"{name} gave NaN gradients: a row of scores was -inf everywhere (a query whose keys are all masked), "
            "and softmax of that is 0 / 0. Leaving those rows out of the loss does not help, since 0 x NaN = "
            "NaN in the backward pass."
        )
        safe = (
            NO_EMPTY_ROW,
            "a finite fill, torch.finfo(scores.dtype).min: such a row becomes uniform",
            "F.scaled_dot_product_attention gives 0 there",
        )
        return Explanation(True, "full_mask", said, safe)
    if re.search(r"attention|bmm|mm|Div|Mul", name, re.IGNORECASE):
        said = (
            f"{name} gave NaN in the backward pass. Most likely a fully masked row (-inf everywhere) reached "
            "softmax and its NaN meets 0 here; in float16 it also fits that q @ k passed 65504 before the "
            "scaling."
        )
        kind = "full_mask"
    else:
        said = (
            f"{name} gave NaN in the backward pass, from a NaN or infinity that came from before: a fully masked "
            "row, or an overflow in float16."
        )
        kind = "grad"
    fixes = (NO_EMPTY_ROW, "scale the query first: (q * D**-0.5) @ k.transpose(-2, -1), or use bfloat16")
    return Explanation(True, kind, said, fixes)


def changed_in_place(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain a saved tensor that was written to."""
    of, shape = match["of"] or "an operation", match["shape"]
    said = f"The backward pass needs the output of {of}" + (f", of shape [{shape}]" if shape else "")
    said += ", as it was, and it was changed in place after it."
    if re.search("softmax", of, re.IGNORECASE):
        said += " Softmax keeps its result for the gradient, so weights must not be masked, dropped or set in place."
    fixes = (
        "weights = weights.masked_fill(...) and weights * keep, not masked_fill_, weights[...] = 0 or *=",
        "scores = scores + mask, not +=; F.dropout(weights, inplace=False)",
        "torch.autograd.set_detect_anomaly(True) names the line",
    )
    return Explanation(True, "grad", said, fixes)


RULES: tuple[Rule, ...] = (
    rule(r"Function '?(?P<name>\w+)'? returned nan values in its \d+\w* output", nan_in_backward),
    rule(r"Error detected in (?P<name>\w*Softmax\w*)", nan_in_backward),
    rule(
        (
            r"modified by an inplace operation(?:: \[[\w.]+(?:Tensor)? \[(?P<shape>[\d, ]*)\]\](?:, which is output "
            r"\d+ "
            r"of (?P<of>\w+))?)?"
        ),
        changed_in_place,
    ),
    says(
        r"Trying to backward through the graph a second time",
        "grad",
        "The graph of a step was used once and is freed. In attention it is most often kept alive by something "
        "carried from "
        "step to step: a key/value cache, a memory or a hidden state that was not detached, or a loss used twice.",
        "cache = [t.detach() for t in cache] between steps",
        "losses added up, then one backward(); retain_graph=True only where two are meant",
    ),
    says(
        r"element \d+ of tensors does not require grad|does not require grad and does not have a grad_fn",
        "grad",
        "Nothing on the way to the loss asks for a gradient: the forward pass ran under no_grad or inference_mode, "
        "every "
        "parameter is frozen, or the result was detached (argmax, .detach(), .data, numpy).",
        (
            "any(p.requires_grad for p in model.parameters()); remove no_grad; inputs.requires_grad_() with frozen "
            "embeddings"
        ),
    ),
    says(
        r"(?:One of the d|d)ifferentiated Tensors?.{0,30}appears? to not have been used in the graph",
        "grad",
        "The output does not depend on a tensor whose gradient is asked for: a projection that forward never uses, a "
        "head or "
        "key that is masked for every query.",
        "torch.autograd.grad(..., allow_unused=True) and look which one is None",
    ),
    says(
        r"Expected to have finished reduction in the prior iteration|parameters that were not used in producing loss|"
        r"Parameter indices which did not receive grad",
        "grad",
        "Some parameters got no gradient in the last step: layers that forward did not use, as a k_proj while the "
        "cache was "
        "taken, or a branch that was skipped.",
        "find p.grad is None after backward(); DistributedDataParallel(..., find_unused_parameters=True)",
    ),
    says(
        r"a (?:view of a )?leaf Variable that requires grad is being used in an in-?place operation|"
        r"a leaf Variable that requires grad has been used in an in-?place operation",
        "init",
        "A parameter was overwritten where gradients are recorded: setting weights by hand is an in-place operation.",
        "with torch.no_grad(): layer.weight.fill_(0), or nn.init.zeros_(layer.weight)",
    ),
    says(
        r"derivative for '?aten::(?P<op>\w*attention\w*backward)'? is not implemented",
        "grad",
        "A second derivative through fused attention (<op>) does not exist.",
        "with torch.nn.attention.sdpa_kernel(SDPBackend.MATH): the plain kernel can be differentiated twice",
    ),
    says(
        r"(?:probability tensor contains either|input must not contain) .{0,4}(?:inf|nan).{0,40}",
        "amp",
        "The model's output is NaN or infinite before sampling. Most likely float16 overflowed (scores beyond "
        "65504); it also "
        "fits that a padded row is masked everywhere and softmax gave 0 / 0.",
        "model.to(torch.bfloat16) or float32",
        "padding_side='left' and an attention_mask for batched generation",
        NO_EMPTY_ROW,
    ),
    says(
        r"Fan in and fan out can not be computed for tensor with fewer than 2 dimensions",
        "init",
        "Xavier and Kaiming initialisation need a matrix, and a vector (bias, norm weight) was given to them.",
        "for p in model.parameters(): if p.dim() > 1: nn.init.xavier_uniform_(p)",
    ),
    says(
        r"Initializing zero-element tensors is a no-op",
        "init",
        "A parameter has no elements, so a size (heads, head_dim, width) came out as 0.",
        "check head_dim = embed_dim // num_heads: more heads than channels give 0",
    ),
)
