"""einops: patterns that do not fit a tensor. The text tells the shape, the pattern and the sizes that were given."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from mha_core.doctor.explainers.answer import Explanation, Problem, Reading, Rule, answer, numbers, rule, says
from mha_core.doctor.explainers.solve import head_counts, near_heads, plural, split_advice

_SHAPE = re.compile(r"Input tensor shape: (?:torch\.Size)?\(?\[?(?P<shape>[\d, ]+)\]?\)?")
_PATTERN = re.compile(r'pattern "(?P<pattern>[^"]+)"')
_GIVEN = re.compile(r"'?(\w+)'?: (\d+)")


def _context(message: str) -> str:
    shape, pattern = _SHAPE.search(message), _PATTERN.search(message)
    said = f'The pattern "{pattern["pattern"]}"' if pattern else "The pattern"
    return said + (
        f" meets a tensor of shape {list(numbers(shape['shape']))}." if shape else " does not fit the tensor."
    )


def chunks(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain an axis that cannot be cut into equal chunks."""
    width, size = int(match["width"]), int(match["size"])
    given = dict(_GIVEN.findall(problem.message.partition("Additional info:")[2]))
    return answer(
        _context(problem.message),
        list(_uneven(width, size, {name: int(n) for name, n in given.items()}, problem)),
        problem,
    )


def _uneven(width: int, size: int, given: dict[str, int], problem: Problem) -> Iterator[Reading]:
    packed = [n for name, n in given.items() if n == 3 or name.lower() in ("qkv", "three", "k")]
    heads = next((n for name, n in given.items() if name.lower() in ("h", "heads", "n", "nh", "num_heads")), size)
    if packed and size % packed[0] == 0 and size != packed[0]:
        heads = size // packed[0]
        sentence = (
            f"{width} channels are to hold {packed[0]} x {heads} heads: {width} = {size} x {width // size} + "
            f"{width % size}"
        )
        if width % packed[0]:
            sentence += f"; {width} is no multiple of {packed[0]}, so q, k and v are not packed in this tensor"
            fix = "project with nn.Linear(E, 3 * E) first, or drop the axis of q, k, v"
            yield Reading("qkv_layout", 6.0, sentence, (fix,), {"num_heads": heads})
        else:
            yield Reading("divisibility", 6.0, sentence, split_advice(width // packed[0], heads), {"num_heads": heads})
        return
    rest = width % size
    sentence = (
        f"{width} = {size} x {width // size} + {rest}: {size} heads would take {width - rest} of {width} "
        f"channels, {plural(rest, 'channel')} left over"
    )
    roles = {"embed_dim": width, "num_heads": size}
    if heads != size or not set(given) & {"d", "dim", "head_dim"}:
        yield Reading("divisibility", 5.0, sentence, split_advice(width, size), roles)
        return
    near = " or ".join(map(str, near_heads(width, size)))
    sentence = f"{width} channels are no multiple of head_dim {size}: {plural(rest, 'channel')} left over"
    yield Reading("divisibility", 5.0, sentence, (f"head_dim {near}",), {"embed_dim": width, "head_dim": size})


def unequal(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain an axis whose parts do not multiply to its length, or two axes of one name."""
    have, want = int(match["have"]), int(match["want"])
    given = {name: int(n) for name, n in _GIVEN.findall(problem.message.partition("Additional info:")[2])}
    product = math.prod(given.values())
    if product == want and len(given) >= 2:
        heads, head_dim = list(given.values())[:2]
        facts = _context(problem.message)
        spoken = " x ".join(map(str, given.values()))
        sentence = f"{spoken} = {want} and the axis has {have}, {plural(abs(have - want), 'channel')} "
        sentence += "left over" if have > want else "too few"
        fixes = (
            split_advice(have, heads)
            if have // heads == head_dim and have % heads
            else (f"head counts that divide {have}: {head_counts(have)}",)
        )
        return answer(facts, [Reading("divisibility", 5.0, sentence, fixes, {"embed_dim": have})], problem)
    sentence = (
        f"one letter of the pattern stands for {have} in one place and {want} in another, two lengths, "
        "batches or widths that differ"
    )
    fix = "give each length its own letter (i for queries, j for keys); check h= and d="
    return answer(_context(problem.message), [Reading("cross_dims", 5.0, sentence, (fix,))], problem)


def axes(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain a pattern for another number of axes."""
    want, have = int(match["want"]), int(match["have"])
    said = f"{_context(problem.message)} It names {want} axes and the tensor has {have}."
    is_mask = problem.hints(r"mask|b i j|b j\b")
    fixes: tuple[str, ...] = ("print(x.shape) and name as many axes",)
    if (want, have) == (4, 3):
        said += " Most likely the heads are not split, (B, S, E) for (B, H, S, D)."
        fixes = ("rearrange(x, 'b s (h d) -> b h s d', h=heads)",)
    elif (want, have) == (3, 4):
        said += (
            " Most likely the heads are still an axis of their own, (B, H, S, D), or an image has not been "
            "flattened to tokens."
        )
        fixes = ("rearrange(x, 'b h s d -> b s (h d)')", "rearrange(image, 'b c h w -> b (h w) c')")
    elif have < want:
        said += " An axis such as the batch was lost (squeeze, indexing)."
        fixes = ("x.unsqueeze(0) where the batch is missing",)
    return Explanation(True, "mask_shape" if is_mask and want != 4 else "head_split", said, fixes)


RULES: tuple[Rule, ...] = (
    rule(r"can't divide axis of length (?P<width>\d+) in chunks of (?P<size>\d+)", chunks),
    rule(r"Shape mismatch,? (?P<have>\d+) != (?P<want>\d+)", unequal),
    rule(r"Wrong shape: expected (?:>=)?(?P<want>\d+) dims\.? Received (?P<have>\d+)-dim tensor", axes),
    says(
        r"Could not infer sizes for \{?(?P<names>[^}]+)\}?",
        "head_split",
        (
            "The pattern leaves more than one size of an axis open (<names>): the product h x d is known, its factors "
            "are not."
        ),
        "rearrange(x, 'b s (h d) -> b h s d', h=num_heads)",
    ),
    says(
        r"Identifiers only on one side of expression \(should be on both\): \{?(?P<names>[^}]+)\}?",
        "head_split",
        "<names> stands on one side of the pattern only: rearrange moves axes and may not drop or add any.",
        "keep every letter: 'b s (h d) -> b h s d'; einops.repeat adds axes, einops.reduce drops them",
    ),
    says(
        r"Indexing expression contains duplicate dimension \"?(?P<name>\w+)",
        "mask_shape",
        (
            "The letter <name> stands twice on one side: queries and keys need two letters even where both have one "
            "length."
        ),
        "repeat(mask, 'b j -> b h i j', h=heads, i=q_len)",
    ),
    says(
        r"Specify sizes for new axes in repeat: \{?(?P<names>[^}]+)",
        "head_split",
        "repeat is to make the new axes <names> and their sizes are not told.",
        "repeat(x, 'b s e -> b h s e', h=num_heads): one size for each new letter",
    ),
    says(
        r"Axis (?P<name>\w+) is not used in transform",
        "head_split",
        "A size was given for <name>, and the pattern has no such axis: the letter of the pattern and the name of the "
        "size must be the same.",
        "rearrange(x, 'b s (h d) -> b h s d', h=num_heads), or (heads d) in the pattern with heads=num_heads",
    ),
    says(
        r"Imbalanced parentheses in expression",
        "head_split",
        "The pattern opens or closes one of its parentheses only.",
        "'b s (h d) -> b h s d' splits, 'b h s d -> b s (h d)' joins",
    ),
    says(
        r"Error while processing \w+-reduction pattern|Unexpected identifiers on the left side of repeat|EinopsError",
        "head_split",
        "An einops pattern does not fit its tensor; the last line of the text names the axis.",
        "print(x.shape) before the line; 'b s (h d) -> b h s d' splits, 'b h s d -> b s (h d)' joins",
    ),
)
