"""What nn.MultiheadAttention, nn.Transformer, softmax and dropout refuse about their inputs."""

from __future__ import annotations

import re

from mha_core.doctor.explainers.answer import Explanation, Problem, Reading, Rule, answer, numbers, rule, says

AXES = "batch_first=True for tensors (B, S, E), or pass (S, B, E)"
SAME = "take key and value from the same memory: mha(q, memory, memory)"


def width(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain an input whose last axis is not embed_dim."""
    want, have = int(match["want"]), int(match["have"])
    facts = (
        f"The layer was built with embed_dim {problem.named(want)} and the query's last axis is {problem.named(have)}."
    )
    readings = [
        Reading(
            "cross_dims",
            5.0,
            "the input has another width than the layer",
            (
                f"nn.Linear({have}, {want}) before it, or nn.MultiheadAttention({have}, num_heads)",
                f"kdim={have} for key and value",
            ),
            {"embed_dim": want},
        )
    ]
    others = {"batch", "q_len", "k_len", "head_dim"} & {name for name, size in problem.sizes.items() if size == have}
    if others:
        name = sorted(others)[0]
        sentence = f"{have} is {name}: the axes are in another order, and the channels do not come last"
        kind = "head_split" if name == "head_dim" else "cross_dims"
        readings.append(Reading(kind, 7.0, sentence, ("x.transpose(...) so that the shape is (B, S, E)",)))
    return answer(facts, readings, problem)


def key_and_value(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain key and value of different shapes."""
    key, value = numbers(match["k"]), numbers(match["v"])
    said = f"key is {list(key)} and value {list(value)}"
    apart = [i for i, (a, b) in enumerate(zip(key, value, strict=False)) if a != b]
    if apart == [0]:
        said += f": lengths {key[0]} and {value[0]} differ (inside, axis 0 is the length). Every key needs its value"
    elif apart == [1]:
        said += f": batches {key[1]} and {value[1]} differ (inside, axis 1 is the batch)"
    elif apart and apart[-1] == 2:
        said += ": their widths differ, which needs kdim and vdim"
    said += "; scaled_dot_product_attention on the CPU may even take such a pair and read past the end of the keys."
    return Explanation(True, "cross_dims", said, (SAME, "k.shape[:-1] == v.shape[:-1] as an assert before the call"))


def axes_of_query(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain a query of four axes and more."""
    axes = int(match["axes"])
    said = (
        "nn.MultiheadAttention takes (S, E), or (S, B, E) or (B, S, E), and splits the heads itself; the query "
        f"has {axes} axes, most likely the heads are split already, or an image (B, C, height, width) is not "
        "flattened."
    )
    fixes = (
        "F.scaled_dot_product_attention(q, k, v) for (B, H, S, D)",
        "x.flatten(2).transpose(1, 2) for an image, batch_first=True",
    )
    return Explanation(True, "head_split", said, fixes)


def last_axis(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain a layer whose input has another last axis."""
    want, shape = int(match["want"]), numbers(match["shape"])
    said = (
        f"The layer normalises or projects {want} channels and the input is {list(shape)}, with {shape[-1]} on "
        "its last axis"
    )
    if want in shape[:-1]:
        said += f"; {want} stands on axis {shape.index(want)}, so the axes are in another order"
    fixes = ("x.transpose(...) so that the channels come last, (B, S, E)", f"build the layer for {shape[-1]} channels")
    return Explanation(True, "cross_dims", f"{said}.", fixes)


def probability(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain a dropout probability outside of 0 and 1."""
    said = (
        f"A dropout probability lies between 0 and 1, and {match['p']} was given: percent instead of a fraction, "
        "or another argument in its place (nn.MultiheadAttention(embed_dim, num_heads, dropout))."
    )
    return Explanation(True, "dropout", said, ("dropout=0.1; dropout_p=self.dropout if self.training else 0.0",))


RULES: tuple[Rule, ...] = (
    rule(
        (
            r"normalized_shape=\[(?P<want>\d+)\], expected input with shape \[\*, \d+\], but got input of size ?"
            r"\[(?P<shape>[\d, ]+)\]"
        ),
        last_axis,
    ),
    rule(
        (
            r"expected axis -1 of input shape to have value (?P<want>\d+),? but received input with shape "
            r"[\[(](?P<shape>[\d, ]+)[\])]"
        ),
        last_axis,
    ),
    says(
        r"assert (?:embed_dim == embed_dim_to_check|list\(query\.size\(\)\) == \[tgt_len, bsz, embed_dim\])",
        "cross_dims",
        "The query's last axis is not the embed_dim of the layer.",
        "nn.MultiheadAttention(query.size(-1), num_heads), channels last: (S, B, E) or batch_first=True and (B, S, E)",
    ),
    says(
        (
            r"assert key\.size\(0\) == value\.size\(0\)|assert key\.shape\[:2\] == value\.shape\[:2\]|assert "
            r"key\.shape "
            r"== value\.shape"
        ),
        "cross_dims",
        "key and value differ in length or batch; every key needs its value.",
        SAME,
    ),
    says(
        r"stack expects each tensor to be equal size, but got \[(?P<a>[\d, ]+)\] at entry 0 and \[(?P<b>[\d, ]+)\]",
        "mask_shape",
        "Sequences of shapes [<a>] and [<b>] cannot become one batch: they have to be padded to one length, and the "
        "padding hidden "
        "from the keys.",
        "x = nn.utils.rnn.pad_sequence(sequences, batch_first=True); key_padding_mask = positions >= lengths[:, None]",
    ),
    says(
        r"'MultiheadAttention' object has no attribute '(?P<name>batch_first)'",
        "batch_first",
        "The layer was pickled by a torch older than 1.9, which had no batch_first and read (S, B, E).",
        "save state_dict() instead of the module; layer.batch_first = False",
    ),
    says(
        r"'MultiheadAttention' object has no attribute '(?P<name>_qkv_same_embed_dim|[qkv]_proj\w*|in_proj\w*)'",
        "qkv_layout",
        "nn.MultiheadAttention keeps q, k and v in one in_proj_weight (3E, E); <name> exists only where kdim or vdim "
        "differ, or in "
        "other versions.",
        "w_q, w_k, w_v = mha.in_proj_weight.chunk(3)",
    ),
    rule(r"was expecting embedding dimension of (?P<want>\d+),? but got (?P<have>\d+)", width),
    rule(
        r"key(?:'s sequence and batch dims| shape) (?:torch\.Size)?\(?\[(?P<k>[\d, ]+)\]\)? (?:do|does) not match "
        r"value(?:'s| shape) "
        r"(?:torch\.Size)?\(?\[(?P<v>[\d, ]+)\]",
        key_and_value,
    ),
    rule(r"query should be unbatched 2D or batched 3D tensor but received (?P<axes>\d+)-?D", axes_of_query),
    rule(
        (
            r"dropout(?:_p)? (?:probability )?(?:has to be|must be|should be) .{0,40}between 0 and 1,? but got "
            r"(?P<p>[-\d.e]+)"
        ),
        probability,
    ),
    says(
        r"key and value's sequence and batch dims|key.*sequence and batch dims.*do(?:es)? not match value",
        "cross_dims",
        "key and value differ in length or batch; every key needs its value.",
        SAME,
    ),
    says(
        (
            r"For (?P<mode>unbatched|batched) \((?P<q>\d)-D\) query,? expected key and value to be (?P<n>\d)-D but "
            r"found "
            r"(?P<k>\d)-D and (?P<v>\d)-D"
        ),
        "cross_dims",
        (
            "The query has <q> axes (<mode>) while key and value have <k> and <v>: one side has lost or gained its "
            "batch "
            "axis."
        ),
        "x.unsqueeze(0) where the batch is missing, with batch_first=True; no squeeze() that removes a batch of 1",
    ),
    says(
        r"batch number of src and tgt must be equal",
        "cross_dims",
        "Source and target have different batches, or axis 0 is read as the length: nn.Transformer wants (S, B, E) "
        "unless "
        "batch_first=True.",
        AXES,
    ),
    says(
        r"feature number of src and tgt must be equal to d_model",
        "cross_dims",
        "The last axis of source or target is not d_model: ids that are not embedded, or another width.",
        "embed both to d_model first; " + AXES,
    ),
    says(
        r"batch_first was not True|use batch_first for better inference",
        "batch_first",
        "The layers read (S, B, E), axis 0 as the length: batch_first=False is the default. With input (B, S, E) "
        "nothing complains "
        "and attention runs over the batch; where (S, B, E) is meant only the fast path is lost.",
        "nn.TransformerEncoderLayer(..., batch_first=True) for input (B, S, E)",
    ),
    says(
        r"enable_nested_tensor is True, but",
        "batch_first",
        (
            "The encoder's fast path for padded batches is off for the reason named in the text; the result is the "
            "same, "
            "only slower."
        ),
        "nn.TransformerEncoder(..., enable_nested_tensor=False) silences it",
    ),
    says(
        r"Implicit dimension choice for (?P<f>log_softmax|softmax|softmin)",
        "softmax_dim",
        "<f> was called without dim and guesses: axis 0 for tensors of 0, 1 and 3 axes, axis 1 for others. For "
        "scores (B, Sq, Sk) "
        "that is the batch, for (B, H, Sq, Sk) the heads, and the rows then do not sum to 1 over the keys.",
        "F.softmax(scores, dim=-1)",
    ),
    says(
        r"softmax\(\) (?:missing|received an invalid|got an unexpected).{0,80}dim|softmax\(\): argument 'dim'",
        "softmax_dim",
        "softmax needs the axis it runs over: for scores (B, H, Sq, Sk) the last one, the keys.",
        "scores.softmax(dim=-1)",
    ),
    says(
        (
            r"(?:x|input|query|key|hidden_states)\W+ ?(?:must|should) (?:be|have) (?:a )?(?:shape "
            r")?\(?batch(?:_size)?, "
            r"?seq\w*, ?\w+"
        ),
        "batch_first",
        "The layer wants (batch, length, channels) and got the axes in another order.",
        AXES,
    ),
)
