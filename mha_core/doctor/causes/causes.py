"""From a trace to a named mistake and its line. Every function answers ("", None) where it knows nothing.

split_cause, mask_cause, softmax_cause: the mistakes of splitting and joining heads, of masks, and of the softmax axis.
scale_cause(core, embed_dim, head_dim, trace=None): a scale that is not 1/sqrt(head_dim).
late_scale_cause(core): the product is scaled only after it is computed, which overflows in float16.
gqa_cause(trace, core, batch=, q_len=, k_len=, num_heads=): key/value heads repeated along another axis, or tiled.
shared_projection_cause(trace, core, batch=, q_len=, k_len=, num_heads=): the input is cut into heads before projecting.
path_cause(masked_core, unmasked_core): a mask that only one of two calls has.
dropout_cause(trace): random numbers drawn in an evaluation pass.
detach_cause(trace): tensors taken out of autograd on the way (detach, data, numpy, no_grad).
einsum_cause(trace): an einsum that sums one operand alone over an axis; such a computation is no core.
unregistered_cause(trace, module): weights that are used and are not among the module's parameters.
"""

from __future__ import annotations

from mha_core.doctor.causes.grad_causes import detach_cause, dropout_cause, unregistered_cause
from mha_core.doctor.causes.head_causes import gqa_cause, shared_projection_cause
from mha_core.doctor.causes.mask_causes import mask_cause, path_cause
from mha_core.doctor.causes.scale_causes import late_scale_cause, scale_cause, softmax_cause
from mha_core.doctor.causes.split_causes import einsum_cause, split_cause

__all__ = [
    "detach_cause",
    "dropout_cause",
    "einsum_cause",
    "gqa_cause",
    "late_scale_cause",
    "mask_cause",
    "path_cause",
    "scale_cause",
    "shared_projection_cause",
    "softmax_cause",
    "split_cause",
    "unregistered_cause",
]
