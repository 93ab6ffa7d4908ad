"""Positions beyond a table, and indices out of range in general."""

from __future__ import annotations

import re

from mha_core.doctor.explainers.answer import Explanation, Problem, Rule, rule, says
from mha_core.doctor.explainers.broadcast import TABLE_FIX

FIND = "assert ids.max() < embedding.num_embeddings and ids.shape[1] <= positions.num_embeddings, before the call"


def too_long(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain a text longer than a model's table of positions."""
    have, most = int(match["have"]), int(match["most"])
    said = (
        f"The text has {have} tokens and the model has learned {most} positions: the last {have - most} have "
        "none, and the embedding raises (index out of range, a device-side assert on a GPU)."
    )
    fixes = (
        f"tokenizer(text, truncation=True, max_length={most})",
        "split the text into windows, or use rotary positions or ALiBi",
    )
    return Explanation(True, "position", said, fixes)


def beyond(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain an index beyond an axis, where the text speaks of positions or of attention."""
    if not problem.hints(r"pos_?emb|position|wpe|\bcos\b|rotary|tril|mask|attn|attention|bias\["):
        return None
    index, size = int(match["index"]), int(match["size"])
    said = (
        f"Entry {index} of an axis of {size} was asked for: the table (positions, a causal mask, rotary angles) "
        f"ends at {size - 1}."
    )
    return Explanation(True, "position", said, (TABLE_FIX, FIND))


RULES: tuple[Rule, ...] = (
    says(
        r"RoPE requires an even rotary dimension,? but got head_dim\W{1,3}(?P<d>\d+)(?: with partial_rotary_factor"
        r"\W{1,2}(?P<f>[\d.]+))?",
        "position",
        "Rotary positions turn pairs of channels, so their number must be even; head_dim <d> (times the "
        "partial_rotary_factor) is odd.",
        "an even head_dim: hidden_size / num_attention_heads divisible by 2, or head_dim set by itself",
    ),
    says(
        r"Missing required keys in rope_(?:parameters|scaling) for 'rope_type'='(?P<type>\w+)': \{(?P<keys>[^}]+)\}",
        "position",
        "Rotary scaling of the type <type> needs <keys> in the configuration too.",
        "rope_parameters={'rope_type': '<type>', 'rope_theta': 10000.0, <keys>: ...}",
    ),
    rule(r"index (?P<index>\d+) is out of bounds for (?:dimension|axis) \d+ with size (?P<size>\d+)", beyond),
    rule(
        (
            r"sequence length is longer than the specified maximum sequence length for this model \((?P<have>\d+) > "
            r"(?P<most>\d+)\)"
        ),
        too_long,
    ),
    rule(
        (
            r"(?:sequence|input)(?:_| )?(?:of )?length \(?(?P<have>\d+)\)?.{0,40}(?:block size|max\w*(?: \w+){0,3}) "
            r"\(?(?:is (?:only )?)?(?P<most>\d+)"
        ),
        too_long,
    ),
    says(
        (
            r"index out of range in self|indices? \w* ?(?:out of bounds|out of "
            r"range).*(?:embedding|Gather)|(?:embedding|GatherV2).*(?:out of range|is not in)"
        ),
        "position",
        "An embedding was asked for a row it does not have: a position at or beyond the number of learned positions "
        "(the text is too "
        "long), or a token id at or beyond the vocabulary (added tokens, another tokenizer, a label of -100 used as "
        "an id).",
        FIND,
        TABLE_FIX,
        "model.resize_token_embeddings(len(tokenizer)) after adding tokens",
    ),
    says(
        (
            r"device-side assert|srcIndex < srcSelectDimSize|Assertion .{0,40}(?:index|idx|ind)\w* >= ?(?:-\w+|0) "
            r"&&|indexSelect\w+Index.*Assertion"
        ),
        "position",
        "A check inside a GPU kernel failed; the line named in the traceback is usually a later one. In attention "
        "models the cause is "
        "nearly always an index beyond a table: a position beyond the learned ones, a token id beyond the "
        "vocabulary, or a label.",
        "run the same batch on the CPU, or with CUDA_LAUNCH_BLOCKING=1, to see the true line",
        FIND,
    ),
    says(
        r"right-padding was detected",
        "position",
        "A decoder continues from the last position, and with padding on the right that is a pad: positions and mask "
        "are then those of "
        "padding.",
        "tokenizer.padding_side = 'left', and pass the attention_mask",
    ),
    says(
        (
            r"position_ids.{0,60}(?:must|should|expected|mismatch)|(?:unexpected keyword argument|missing "
            r".*argument).{0,30}position_(?:ids|embeddings)"
        ),
        "position",
        "Positions are handed over differently in this version: rotary cos and sin (position_embeddings) are now "
        "worked out once by the "
        "model and given to each attention layer.",
        "cos_sin = model.rotary_emb(x, position_ids); layer(x, position_embeddings=cos_sin, attention_mask=mask)",
    ),
    says(
        (
            r"rotary.{0,60}(?:must|should).{0,30}(?:even|divisible by 2|multiple of "
            r"2)|(?:dim|head_dim)\w*.{0,30}(?:must|should) be (?:even|divisible by "
            r"2).*(?:rotary|rope|sin|position)"
        ),
        "position",
        "Rotary and sinusoidal positions work on pairs of channels, so the size they run over must be even.",
        "an even head_dim: embed_dim / num_heads divisible by 2",
    ),
)
