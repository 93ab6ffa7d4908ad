"""Mistakes in reading weights, and in counting work and memory: the layer itself is right."""

from mha_core.clinic.record import Mistake

FLOPS = (("flops", "work of one forward pass", "FLOP"),)
BYTES = (("size_bytes", "memory", "bytes"),)
READING = (
    Mistake(
        name="second_softmax",
        title="Weights put through a softmax again",
        kind="weights_reading",
        symptoms=("nothing",),
        steps=("read",),
        wrong="shown = torch.softmax(weights, dim=-1)",
        right="shown = weights",
        needs=("tokens",),
        notice="The picture is almost uniform, whatever the text.",
        fix="Show the weights; a log scale helps where they are small.",
        lesson="Weights are probabilities already. With 100 keys a second softmax never shows more than 0.027.",
    ),
    Mistake(
        name="average_of_heads",
        title="The average of heads taken for a head",
        kind="weights_reading",
        symptoms=("nothing",),
        steps=("read",),
        wrong="shown = weights.mean(1, keepdim=True).expand(-1, H, -1, -1)",
        right="shown = weights",
        needs=("heads", "tokens"),
        notice="nn.MultiheadAttention gives (B, S, S): no axis for heads.",
        fix="average_attn_weights=False",
        lesson="Four different one-hot heads average to 0.25 everywhere.",
    ),
    Mistake(
        name="heads_before_batch",
        title="(H·B, S, S) read as (B·H, S, S)",
        kind="weights_reading",
        symptoms=("nothing", "batch_changes"),
        steps=("read",),
        wrong="flat = weights.permute(1, 0, 2, 3).reshape(H * B, Sq, Sk)  # heads first\n"
        "shown = flat.view(B, H, Sq, Sk)",
        right="flat = weights.permute(1, 0, 2, 3).reshape(H * B, Sq, Sk)  # heads first\n"
        "shown = flat.view(H, B, Sq, Sk).transpose(0, 1)",
        needs=("sequences", "heads"),
        notice="Maps of one sequence appear under the name of another; padding stands in the wrong place.",
        fix="flat.view(H, B, S, S).transpose(0, 1)",
        lesson="The product B·H forgets the order of its factors.",
    ),
    Mistake(
        name="only_one_product_counted",
        title="FLOP estimate without weights · V",
        kind="flops",
        symptoms=("slow_or_memory", "nothing"),
        steps=("report",),
        wrong="flops = 2 * B * Sq * E * H * D * 2 + 2 * B * Sk * E * Hkv * D * 2  # four projections\n"
        "flops += 2 * B * H * Sq * Sk * D  # q kᵀ",
        right="flops = 2 * B * Sq * E * H * D * 2 + 2 * B * Sk * E * Hkv * D * 2  # four projections\n"
        "flops += 2 * B * H * Sq * Sk * D  # q kᵀ\n"
        "flops += 2 * B * H * Sq * Sk * D  # weights · v",
        needs=("square_inputs",),
        reports=FLOPS,
        notice="The measured time grows with S² twice as fast as the estimate.",
        fix="4·B·H·Sq·Sk·D for the two products.",
        lesson="Counters that only see modules miss both products: they are functions, not layers.",
    ),
    Mistake(
        name="multiply_adds_as_flops",
        title="Multiply-adds sold as FLOP",
        kind="flops",
        symptoms=("nothing",),
        steps=("report",),
        wrong="macs = B * H * Sq * Sk * D * 2\nflops = macs",
        right="macs = B * H * Sq * Sk * D * 2\nflops = 2 * macs",
        reports=(("flops", "work of the two products", "FLOP"),),
        notice="Two tools differ by exactly 2.",
        fix="FLOP = 2 · MAC, and say which.",
        lesson="fvcore and ptflops give MACs, torch's FlopCounterMode gives FLOP.",
    ),
    Mistake(
        name="memory_of_one_head",
        title="Score memory without the heads",
        kind="memory",
        symptoms=("slow_or_memory",),
        steps=("report",),
        wrong="size_bytes = B * Sq * Sk * itemsize",
        right="size_bytes = B * H * Sq * Sk * itemsize",
        needs=("heads",),
        reports=BYTES,
        notice="Out of memory at a length that was “worked out”.",
        fix="B·H·Sq·Sk·bytes, two to three times that in training; a fused kernel keeps none of it.",
        lesson="Doubling the length costs four times, and every head has a matrix of its own.",
    ),
    Mistake(
        name="mask_spread_out",
        title="A padding mask spread to (B, H, S, S) floats",
        kind="memory",
        symptoms=("slow_or_memory",),
        steps=("report",),
        wrong="spread = torch.zeros(B, H, Sq, Sk).masked_fill(~keep[:, None, None, :], -torch.inf)\n"
        "size_bytes = spread.numel() * spread.element_size()",
        right="spread = keep[:, None, None, :]\nsize_bytes = spread.numel() * spread.element_size()",
        reports=BYTES,
        notice="The mask takes as much memory as the scores.",
        fix="Keep (B, 1, 1, Sk) booleans and let them broadcast.",
        lesson="An axis of size 1 is free; a repeated one is not.",
    ),
)
