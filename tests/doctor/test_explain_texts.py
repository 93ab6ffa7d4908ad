"""Error texts as torch 1.x to 2.13, transformers, einops, xformers, flash-attn and NumPy print them.

The first table holds reports from issue trackers; its words are those of the solution that was accepted there.
"""

from __future__ import annotations

import pytest

from mha_core.doctor.explain import explain
from mha_core.doctor.explainers.kinds import KINDS

REPORTS = [
    (
        "head_split",
        "RuntimeError: view size is not compatible with input tensor's size and stride (at least one dimension spans "
        "across two contiguous subspaces). Use .reshape(...) instead.",
        ("reshape", "transpose", "contiguous()"),
    ),
    (
        "head_split",
        "RuntimeError: The size of tensor a (4) must match the size of tensor b (7) at non-singleton dimension 1",
        ("-1", "k.size(1)", "length of the query"),
    ),
    (
        "divisibility",
        "shape '[12, 320, 51]' is invalid for input of size 196608",
        ("10 x 51 = 510", "510 of 512", "2 channels", "1, 2, 4, 8, 16, 32, 64"),
    ),
    (
        "divisibility",
        (
            "(reconstructed from the reporter's sizes:) RuntimeError: shape '[3, 11, 13]' is invalid for input of size "
            "10659"
        ),
        ("323", "13", "width of the input"),
    ),
    ("divisibility", "AssertionError: embed_dim must be divisible by num_heads", ("convention", "head_dim of its own")),
    (
        "cross_dims",
        (
            "(reconstructed from the reporter's sizes:) RuntimeError: shape '[1, 4, 384]' is invalid for input of size "
            "35328"
        ),
        ("23", "batch_first=True", "length"),
    ),
    ("cross_dims", "RuntimeError: shape '[1, 4, 6]' is invalid for input of size 216", ("9", "batch_first=True")),
    (
        "cross_dims",
        "RuntimeError: shape '[5, 2, 6]' is invalid for input of size 240",
        ("4 against 1", "expand(4, -1, -1)"),
    ),
    ("cross_dims", "AssertionError: assert key_padding_mask.size(1) == tgt_len", ("(B, Sk)", "SOURCE")),
    ("cross_dims", "AssertionError: Expected key_padded_mask.shape[1] to be 5, but got 3", ("5", "3", "source")),
    (
        "mask_shape",
        "RuntimeError: The shape of the 2D attn_mask is torch.Size([77, 77]), but should be (10, 10).",
        ("10 is the batch size", "batch_first"),
    ),
    (
        "mask_shape",
        "(own run:) RuntimeError: The shape of the 3D attn_mask is torch.Size([2, 5, 5]), but should be (8, 5, 5).",
        ("8 = 2 x 4", "repeat_interleave(4, dim=0)"),
    ),
    (
        "mask_shape",
        "(reconstructed from the reporter's chunk sizes:) RuntimeError: The size of tensor a (16) must match the "
        "size of "
        "tensor b (9) at non-singleton dimension 3",
        ("7 past + 9 new", "[-9:]"),
    ),
    (
        "mask_dtype",
        "RuntimeError: Expected attn_mask dtype to be bool or to match query dtype, but got attn_mask.dtype: float and "
        "query.dtype: c10::BFloat16 instead.",
        ("BFloat16", "to(query.dtype)"),
    ),
    (
        "mask_dtype",
        (
            "UserWarning: Support for mismatched key_padding_mask and attn_mask is deprecated. Use same type for both "
            "instead."
        ),
        ("generate_square_subsequent_mask", "both bool", "both float"),
    ),
    (
        "mask_dtype",
        (
            "(1.12: none, silent; 2.13:) AssertionError: only bool and floating types of src_key_padding_mask are "
            "supported"
        ),
        ("src_key_padding_mask", ".bool()", "training and evaluation"),
    ),
    (
        "causal",
        "(2.0: none, silent; 2.13:) RuntimeError: Need attn_mask if specifying the is_causal hint. You may use the "
        "Transformer module method `generate_square_subsequent_mask` to create this mask.",
        ("hint", "attn_mask=", "is_causal=True"),
    ),
    (
        "causal",
        "RuntimeError: _scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True",
        ("one mask", "is_causal=False"),
    ),
    (
        "qkv_layout",
        "RuntimeError: size mismatch for transformer.h.0.attn.c_attn.weight: copying a param with shape "
        "torch.Size([2304, 768]) from checkpoint, the shape in current model is torch.Size([768, 2304]).",
        ("transposed", "Conv1D", ".t()", "square"),
    ),
    (
        "qkv_layout",
        'RuntimeError: Error(s) in loading state_dict: Missing key(s) in state_dict: "...self_attn.k_proj.weight" ... '
        'Unexpected key(s): "...self_attn.in_proj_weight"',
        ("fused", "chunk(3, dim=0)", "q, k, v"),
    ),
    (
        "gqa",
        "RuntimeError: The size of tensor a (32) must match the size of tensor b (8) at non-singleton dimension 1",
        ("32 query heads", "8 KV heads", "enable_gqa=True", "repeat_interleave(4, dim=1)"),
    ),
    ("memory", "OOM while allocating a [16, 20000, 20000] tensor (paraphrased)", ("25.6 GB", "23.8 GiB", "quarter")),
    (
        "amp",
        "(none quoted; CPU own run:) RuntimeError: expected scalar type Float but found BFloat16",
        (".to(v.dtype)", "type_as(x)"),
    ),
]

EINOPS = (
    'Error while processing rearrange-reduction pattern "{}".\n Input tensor shape: torch.Size([2, 10, {}]). '
    "Additional info: {}.\n {}"
)
XFORMERS = """NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:
     query       : shape=(200, 9126, 1, 64) (torch.float32)
     key         : shape=(200, 9126, 1, 64) (torch.float32)
     attn_bias   : <class 'NoneType'>
     p           : 0.0
`flshattF` is not supported because:
    device=cpu (supported: {'cuda'})
    dtype=torch.float32 (supported: {torch.float16, torch.bfloat16})
`smallkF` is not supported because:
    unsupported embed per head: 64"""
INPLACE = (
    "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: "
    "[torch.FloatTensor [3, 3]], which is output 0 of Softmax, is at version 1; expected version 0 instead."
)
TEXTS = [
    # torch: views
    (
        "divisibility",
        "invalid argument 2: size '[2 x 10 x 7 x 73]' is invalid for input with 10240 elements at /pytorch/TH.cpp:84",
        "511 of 512",
    ),
    (
        "divisibility",
        (
            "RuntimeError: unflatten: Provided sizes [7, 73] don't multiply up to the size of dim 2 (512) in the input "
            "tensor"
        ),
        "511",
    ),
    ("divisibility", "ValueError: cannot reshape array of size 10240 into shape (2,10,7,73)", "1 channel"),
    (
        "divisibility",
        "TypeError: cannot reshape array of shape (2, 10, 512) (size 10240) into shape (2, 10, 7, 73) (size 10220)",
        "511 of 512",
    ),
    (
        "divisibility",
        "Input to reshape is a tensor with 10240 values, but the requested shape has 10220 [Op:Reshape]",
        "511 of 512",
    ),
    (
        "divisibility",
        (
            "TypeError: view(): argument 'size' failed to unpack the object at pos 4 with error \"type must be tuple "
            "of "
            'ints,but got float"'
        ),
        "//",
    ),
    (
        "divisibility",
        "RuntimeError: shape '[2, 10, 16, 0]' is invalid for input of size 160",
        "more heads than channels",
    ),
    ("gqa", "RuntimeError: shape '[1, 6, 64, 128]' is invalid for input of size 6144", "8 x 128"),
    ("qkv_layout", "RuntimeError: shape '[2, 10, 8, 64]' is invalid for input of size 30720", "3 x 8 heads"),
    (
        "qkv_layout",
        "RuntimeError: shape '[2, 197, 3, 12, 64]' is invalid for input of size 302592",
        "one projection only",
    ),
    ("mask_shape", "RuntimeError: shape '[1, 1, 5, 5]' is invalid for input of size 9", "3 x 3"),
    ("head_split", "RuntimeError: shape '[8, 64]' is invalid for input of size 10240", "20 tokens"),
    # torch: broadcasting
    (
        "mask_shape",
        (
            "The expanded size of the tensor (8) must match the existing size (2) at non-singleton dimension 1.  "
            "Target "
            "sizes: [2, 8, 5, 5].  Tensor sizes: [2, 5, 5]"
        ),
        "[2, 1, 5, 5]",
    ),
    (
        "position",
        (
            "RuntimeError: The expanded size of the tensor (1024) must match the existing size (512) at non-singleton "
            "dimension 1.  Target sizes: [1, 1024].  Tensor sizes: [1, 512]"
        ),
        "512",
    ),
    (
        "position",
        "RuntimeError: The size of tensor a (577) must match the size of tensor b (197) at non-singleton dimension 1",
        "197 positions",
    ),
    (
        "position",
        "RuntimeError: The size of tensor a (64) must match the size of tensor b (32) at non-singleton dimension 3",
        "32",
    ),
    (
        "mask_shape",
        "RuntimeError: output with shape [8, 5, 5] doesn't match the broadcast shape [2, 8, 5, 5]",
        "[8, 5, 5]",
    ),
    (
        "qkv_layout",
        "RuntimeError: The size of tensor a (1024) must match the size of tensor b (3072) at non-singleton dimension 2",
        "3 x 1024",
    ),
    (
        "cross_dims",
        "RuntimeError: The size of tensor a (3) must match the size of tensor b (9) at non-singleton dimension 0",
        "3",
    ),
    (
        "gqa",
        (
            "RuntimeError: Sizes of tensors must match except in dimension 2. Expected size 32 but got size 8 for "
            "tensor "
            "number 1 in the list."
        ),
        "4 x 8 heads",
    ),
    (
        "cross_dims",
        (
            "RuntimeError: Sizes of tensors must match except in dimension 1. Got 5 and 4 in dimension 0 (The "
            "offending "
            "index is 1)"
        ),
        "5 against 4",
    ),
    ("head_split", "RuntimeError: Tensors must have same number of dimensions: got 4 and 3", "(B, H, S, D)"),
    ("head_split", "IndexError: Dimension out of range (expected to be in range of [-3, 2], but got 3)", "3 axes"),
    (
        "head_split",
        (
            "permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired "
            "ordering of dimensions i.e. input.dim() = 3 is not equal to len(dims) = 4"
        ),
        "(B, S, H, D)",
    ),
    # torch: products
    ("cross_dims", "RuntimeError: mat1 and mat2 shapes cannot be multiplied (20x384 and 512x512)", "kdim=384"),
    (
        "divisibility",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (20x511 and 512x512)",
        "7 heads x 73 = 511",
    ),
    ("head_split", "RuntimeError: mat1 and mat2 shapes cannot be multiplied (160x64 and 512x512)", "8 x 64"),
    (
        "head_split",
        "size mismatch, m1: [160 x 64], m2: [512 x 512] at /pytorch/aten/src/TH/generic/THTensorMath.cpp:752",
        "8 x 64",
    ),
    (
        "cross_dims",
        "RuntimeError: Expected size for first two dimensions of batch2 tensor to be: [1, 6] but got: [1, 7].",
        "6 keys and V has 7",
    ),
    (
        "head_split",
        "RuntimeError: Expected size for first two dimensions of batch2 tensor to be: [16, 64] but got: [16, 11].",
        "transpose(-2, -1)",
    ),
    (
        "cross_dims",
        (
            "Expected tensor to have size 6 at dimension 1, but got size 7 for argument #2 'batch2' (while checking "
            "arguments for bmm)"
        ),
        "7",
    ),
    ("head_split", "RuntimeError: batch1 must be a 3D tensor", "(B * H, S, D)"),
    (
        "gqa",
        (
            "RuntimeError: einsum(): subscript h has size 2 for operand 1 which does not broadcast with previously "
            "seen "
            "size 8"
        ),
        "8 query heads",
    ),
    (
        "cross_dims",
        (
            "RuntimeError: einsum(): subscript b has size 4 for operand 1 which does not broadcast with previously "
            "seen "
            "size 2"
        ),
        "batch",
    ),
    (
        "head_split",
        (
            "RuntimeError: einsum(): the number of subscripts in the equation (4) does not match the number of "
            "dimensions (3) for operand 0 and no ellipsis was given"
        ),
        "4 axes",
    ),
    (
        "cross_dims",
        (
            "ValueError: matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature "
            "(n?,k),(k,m?)->(n?,m?) (size 512 is different from 64)"
        ),
        "512",
    ),
    (
        "mask_shape",
        "ValueError: operands could not be broadcast together with shapes (2,8,5,5) (2,5,5) ",
        "[2, 1, 5, 5]",
    ),
    (
        "mask_shape",
        (
            "tensorflow.python.framework.errors_impl.InvalidArgumentError: Incompatible shapes: [2,8,5,5] vs. [2,5,5] "
            "[Op:AddV2]"
        ),
        "[2, 1, 5, 5]",
    ),
    # einops
    (
        "divisibility",
        EINOPS.format(
            "b s (h d) -> b h s d", 512, "{'h': 7}", "Shape mismatch, can't divide axis of length 512 in chunks of 7"
        ),
        "511 of 512",
    ),
    (
        "divisibility",
        EINOPS.format("b s (h d) -> b h s d", 512, "{'h': 7, 'd': 73}", "Shape mismatch, 512 != 511"),
        "7 x 73",
    ),
    (
        "qkv_layout",
        EINOPS.format(
            "b s (qkv h d) -> qkv b h s d",
            512,
            "{'qkv': 3, 'h': 8}",
            "Shape mismatch, can't divide axis of length 512 in chunks of 24",
        ),
        "no multiple of 3",
    ),
    (
        "head_split",
        EINOPS.format("b h s d -> b s (h d)", 512, "{}", "Wrong shape: expected 4 dims. Received 3-dim tensor."),
        "4 axes",
    ),
    (
        "head_split",
        EINOPS.format("b s (h d) -> b h s d", 512, "{}", "Could not infer sizes for {'d', 'h'}"),
        "h=num_heads",
    ),
    (
        "head_split",
        EINOPS.format(
            "b s (h d) -> b h s",
            512,
            "{'h': 8}",
            "Identifiers only on one side of expression (should be on both): {'d'}",
        ),
        "'d'",
    ),
    # masks
    ("mask_shape", "RuntimeError: For mask_type == 2 mask shape should match input shape", "repeat_interleave"),
    ("mask_shape", "RuntimeError: The size of the 2D attn_mask is not correct.", "(Sq, Sk)"),
    (
        "mask_shape",
        (
            "AssertionError: For batched (3-D) `query`, expected `attn_mask` to be `None`, 2-D or 3-D but found 4-D "
            "tensor instead"
        ),
        "4 axes",
    ),
    (
        "mask_shape",
        "ValueError: Attention mask should be of size (1, 1, 5, 5), but is torch.Size([1, 1, 5, 10])",
        "5 keys too many",
    ),
    (
        "cross_dims",
        "ValueError: Attention weights should be of size (64, 5, 5), but is torch.Size([64, 5, 9])",
        "kv_seq_len",
    ),
    (
        "gqa",
        "ValueError: `attn_output` should be of size (1, 32, 5, 128), but is torch.Size([1, 8, 5, 128])",
        "repeat_kv",
    ),
    ("mask_dtype", "RuntimeError: masked_fill_ only supports boolean masks, but got mask with dtype float", "== 0"),
    (
        "mask_dtype",
        (
            "RuntimeError: Expected attn_mask dtype to be bool or float or to match query dtype, but got "
            "attn_mask.dtype: long int and  query.dtype: float instead."
        ),
        "long",
    ),
    (
        "mask_dtype",
        "RuntimeError: Input dtypes must be the same, got: input float, batch1: c10::BFloat16, batch2: c10::BFloat16",
        "attn_mask",
    ),
    (
        "mask_dtype",
        (
            "RuntimeError: Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to "
            "invert a mask, use the `~` or `logical_not()` operator instead."
        ),
        "~mask",
    ),
    ("mask_value", "RuntimeError: value cannot be converted to type at::Half without overflow: -1e+09", "65504"),
    ("mask_value", "RuntimeError: value cannot be converted to type c10::Half without overflow", "finfo"),
    # dtypes
    ("amp", "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16", "bfloat16"),
    ("amp", "RuntimeError: expected m1 and m2 to have the same dtype, but got: float != c10::Half", "float16"),
    ("amp", "RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'", "CPU"),
    (
        "amp",
        (
            "RuntimeError: Expected query, key, and value to have the same dtype, but got query.dtype: float "
            "key.dtype: "
            "c10::Half and value.dtype: c10::Half instead."
        ),
        "query is float32",
    ),
    ("amp", "RuntimeError: FlashAttention only support fp16 and bf16 data type", "bfloat16"),
    ("amp", XFORMERS, "float32"),
    ("amp", "RuntimeError: No available kernel. Aborting execution.", "SDPBackend.MATH"),
    # divisibility, told in advance
    (
        "divisibility",
        "ValueError: The hidden size (768) is not a multiple of the number of attention heads (7)",
        "763 of 768",
    ),
    (
        "divisibility",
        "ValueError: `embed_dim` must be divisible by `num_heads` (got `embed_dim`: 512 and `num_heads`: 7).",
        "511 of 512",
    ),
    (
        "divisibility",
        "ValueError: hidden_size must be divisible by num_heads (got `hidden_size`: 512 and `num_heads`: 7).",
        "511 of 512",
    ),
    ("divisibility", "ValueError: embed_dim (d_model) must be divisible by num_heads, but got 512 and 7", "511 of 512"),
    ("divisibility", "ValueError: config.n_heads 7 must divide config.dim 512 evenly", "511 of 512"),
    (
        "divisibility",
        "ValueError: The hidden size is not divisible by the number of attention heads! Make sure to update them!",
        "convention",
    ),
    ("divisibility", "AssertionError: dim should be divisible by num_heads", "convention"),
    ("divisibility", "    assert config.n_embd % config.n_head == 0\nAssertionError", "convention"),
    ("divisibility", "    assert d_model % self.num_heads == 0\nAssertionError", "convention"),
    (
        "divisibility",
        "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).",
        "28",
    ),
    ("divisibility", "RuntimeError: FlashAttention forward only supports head dimension at most 256", "256"),
    ("gqa", "RuntimeError: Number of heads in key and value must divide the number of heads in query", "KV heads"),
    ("gqa", "    assert args.n_heads % args.n_kv_heads == 0\nAssertionError", "KV heads"),
    # layers
    ("cross_dims", "AssertionError: was expecting embedding dimension of 512, but got 256", "512"),
    (
        "head_split",
        "AssertionError: query should be unbatched 2D or batched 3D tensor but received 4-D query tensor",
        "4 axes",
    ),
    (
        "cross_dims",
        "AssertionError: key's sequence and batch dims torch.Size([5, 2]) do not match value's torch.Size([7, 2])",
        "5 and 7",
    ),
    (
        "cross_dims",
        "AssertionError: key shape torch.Size([5, 2, 8]) does not match value shape torch.Size([6, 2, 8])",
        "5 and 6",
    ),
    ("batch_first", "AssertionError: Expected key_padded_mask.shape[0] to be 10, but got 32", "batch_first=True"),
    (
        "batch_first",
        (
            "UserWarning: enable_nested_tensor is True, but self.use_nested_tensor is False because "
            "encoder_layer.self_attn.batch_first was not True(use batch_first for better inference performance)"
        ),
        "(S, B, E)",
    ),
    (
        "softmax_dim",
        (
            "UserWarning: Implicit dimension choice for softmax has been deprecated. Change the call to include "
            "dim=X as "
            "an argument."
        ),
        "dim=-1",
    ),
    ("dropout", "ValueError: dropout probability has to be between 0 and 1, but got 1.5", "1.5"),
    # checkpoints
    (
        "gqa",
        (
            "size mismatch for model.layers.0.self_attn.k_proj.weight: copying a param with shape torch.Size([1024, "
            "8192]) from checkpoint, the shape in current model is torch.Size([8192, 8192])."
        ),
        "8 times",
    ),
    (
        "qkv_layout",
        (
            'RuntimeError: Error(s) in loading state_dict for M:\n\tMissing key(s) in state_dict: "in_proj_weight", '
            '"out_proj.weight". \n\tUnexpected key(s) in state_dict: "module.in_proj_weight", '
            '"module.out_proj.weight". '
        ),
        "removeprefix('module.')",
    ),
    (
        "position",
        (
            "size mismatch for pos_embed: copying a param with shape torch.Size([1, 197, 768]) from checkpoint, the "
            "shape in current model is torch.Size([1, 577, 768])."
        ),
        "interpolate",
    ),
    ("cross_dims", "AssertionError: expecting key weights shape of (8, 8), but got torch.Size([8, 6])", "kdim"),
    (
        "qkv_layout",
        (
            "RuntimeError: split_with_sizes expects split_sizes to sum exactly to 1500 (input tensor's size at "
            "dimension "
            "-1), but got split_sizes=[512, 512, 512]"
        ),
        "36 too many",
    ),
    (
        "gqa",
        (
            "RuntimeError: split_with_sizes expects split_sizes to sum exactly to 6144 (input tensor's size at "
            "dimension "
            "-1), but got split_sizes=[4096, 4096, 4096]"
        ),
        "[4096, 1024, 1024]",
    ),
    # memory
    (
        "memory",
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 GiB. GPU 0 has a total capacity of "
            "79.15 GiB"
        ),
        "32768 x 32768",
    ),
    (
        "memory",
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you "
            "tried to allocate 25600000000 bytes. Error code 12 (Cannot allocate memory)"
        ),
        "16 score matrices (batch x heads) of 20000 x 20000",
    ),
    # gradients
    ("grad", INPLACE, "Softmax"),
    (
        "grad",
        (
            "RuntimeError: Trying to backward through the graph a second time (or directly access saved tensors after "
            "they have already been freed)."
        ),
        "detach",
    ),
    ("grad", "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn", "no_grad"),
    ("full_mask", "RuntimeError: Function 'SoftmaxBackward0' returned nan values in its 0th output.", "masked"),
    (
        "init",
        "ValueError: Fan in and fan out can not be computed for tensor with fewer than 2 dimensions",
        "p.dim() > 1",
    ),
    # positions, devices, results
    ("position", "IndexError: index out of range in self", "positions"),
    ("position", "RuntimeError: CUDA error: device-side assert triggered", "CUDA_LAUNCH_BLOCKING"),
    (
        "position",
        (
            "Token indices sequence length is longer than the specified maximum sequence length for this model (600 > "
            "512). Running this sequence through the model will result in indexing errors"
        ),
        "88",
    ),
    ("position", "AssertionError: Cannot forward sequence of length 1200, block size is only 1024", "176"),
    ("weights_reading", "ValueError: not enough values to unpack (expected 3, got 2)", "(output, weights)"),
    ("weights_reading", "TypeError: cannot unpack non-iterable NoneType object", "need_weights"),
    ("weights_reading", "AttributeError: 'tuple' object has no attribute 'shape'", "output, weights"),
    (
        "weights_reading",
        (
            "`sdpa` attention does not support `output_attentions=True`. Please set your attention to `eager` if you "
            "want any of these features."
        ),
        "eager",
    ),
    (
        "mask_shape",
        "TypeError: MultiheadAttention.forward() got an unexpected keyword argument 'attention_mask'",
        "key_padding_mask",
    ),
    ("scale", "TypeError: scaled_dot_product_attention() got an unexpected keyword argument 'scale'", "2.1"),
    ("gqa", "TypeError: scaled_dot_product_attention() got an unexpected keyword argument 'enable_gqa'", "2.5"),
    ("batch_first", "TypeError: MultiheadAttention.__init__() got an unexpected keyword argument 'batch_first'", "1.9"),
    ("flops", "Unsupported operator aten::scaled_dot_product_attention encountered 12 time(s)", "0"),
    (
        "mask_shape",
        (
            "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
            "cpu! (when checking argument for argument mask in method wrapper_CUDA__masked_fill_)"
        ),
        "register_buffer",
    ),
]


def said(text: str, **sizes: int) -> tuple[str, str]:
    """Explain a text that has to be known; the kind, and everything that was said."""
    found = explain(text, sizes)
    assert found.known
    assert found.try_
    assert found.kind in KINDS
    return found.kind, " ".join((found.explanation, *found.try_))


@pytest.mark.parametrize(("kind", "text", "words"), REPORTS, ids=lambda value: str(value)[:40])
def test_reports(kind: str, text: str, words: tuple[str, ...]) -> None:
    found, spoken = said(text)
    assert found == kind
    assert [word for word in words if word not in spoken] == []


@pytest.mark.parametrize(("kind", "text", "word"), TEXTS, ids=lambda value: str(value)[:40])
def test_texts_of_all_versions(kind: str, text: str, word: str) -> None:
    found, spoken = said(text)
    assert found == kind
    assert word in spoken


@pytest.mark.parametrize("text", [text for _, text, _ in [*REPORTS, *TEXTS]], ids=lambda text: text[:40])
def test_an_explanation_is_one_short_paragraph(text: str) -> None:
    found = explain(text)
    assert "\n" not in found.explanation
    assert 40 < len(found.explanation) < 900
    assert "?" not in found.explanation.replace("?)", "")
    assert all(0 < len(change) < 220 for change in found.try_)
