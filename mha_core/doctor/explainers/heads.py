"""Head counts that do not divide a width, or KV heads that do not divide heads, as libraries say it in advance."""

from __future__ import annotations

import re

from mha_core.doctor.explainers.answer import Explanation, Problem, Rule, rule, says
from mha_core.doctor.explainers.solve import divisors, head_counts, plural, split_advice

CONVENTION = (
    "each head gets embed_dim // num_heads channels of one E x E projection, so the width must be a multiple of the "
    "head "
    "count. That is a convention: the mathematics allow any head_dim"
)
CUSTOM = "a head_dim of its own: q, k, v = nn.Linear(E, H * D), out = nn.Linear(H * D, E)"
KV_FIX = "num_key_value_heads={near}, which divides {heads}"


def width_and_heads(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain a text that may tell width and head count."""
    groups = match.groupdict()
    width, heads = groups.get("width"), groups.get("heads")
    if not (width and heads) and not match[0].startswith("assert"):
        told = _told(match)
        width, heads = told if told else (width, heads)
    known = problem.sizes
    return _divide(int(width or known.get("embed_dim", 0)), int(heads or known.get("num_heads", 0)))


def _told(match: re.Match[str]) -> tuple[int, int] | None:
    """Read two numbers told in or right after a match, the larger one first."""
    found = [int(n) for n in re.findall(r"(?<![\w.])\d+", match.string[match.start() : match.end() + 60]) if int(n)]
    return (max(found[:2]), min(found[:2])) if len(found) > 1 else None


def _divide(width: int, heads: int) -> Explanation:
    if not width or not heads:
        fixes = ("choose num_heads among the divisors of embed_dim, as 1, 2, 4, 8, 16, 32, 64 of 512", CUSTOM)
        said = f"By the library's design, {CONVENTION}. Give --embed-dim and --num-heads to see which heads fit."
        return Explanation(True, "divisibility", said, fixes)
    rest = width % heads
    if rest == 0:
        said = (
            f"{heads} divides {width} (head_dim {width // heads}), so the text is about other numbers than these: "
            f"{CONVENTION}."
        )
        return Explanation(True, "divisibility", said, (f"head counts that divide {width}: {head_counts(width)}",))
    said = (
        f"{width} / {heads} = {width / heads:.2f}: {heads} heads x {width // heads} = {width - rest} of {width} "
        f"channels, {plural(rest, 'channel')} left over. {CONVENTION[0].upper()}{CONVENTION[1:]}."
    )
    return Explanation(True, "divisibility", said, split_advice(width, heads))


def heads_and_width(match: re.Match[str], problem: Problem) -> Explanation | None:
    """Explain a divisibility text with two numbers in either order: the larger one is the width."""
    a, b = int(match["a"]), int(match["b"])
    return _divide(max(a, b), min(a, b))


def kv_heads(match: re.Match[str], problem: Problem) -> Explanation:
    """Explain KV heads that do not divide the heads of the query."""
    groups = match.groupdict()
    heads, few = problem.sizes.get("num_heads", 0), problem.sizes.get("num_kv_heads", 0)
    if groups.get("heads") and groups.get("kv"):
        heads, few = int(groups["heads"]), int(groups["kv"])
    elif not match[0].startswith("assert") and (told := _told(match)):
        heads, few = told
    said = "Grouped queries share KV heads evenly, so the count of KV heads must divide that of the query"
    if heads and few:
        said += (
            f": {heads} = {heads // few} x {few} + {heads % few}, so {plural(heads % few, 'head')} would have no group"
        )
        if few > heads:
            said += f" (there are more KV heads, {few}, than heads: exchanged, or on another axis than 1)"
    usable = ", ".join(map(str, divisors(heads))) if heads else "the divisors of num_heads"
    fixes = (f"num_kv_heads among {usable}", "heads are axis 1 of (B, H, S, D): transpose(1, 2) if the length is there")
    return Explanation(True, "gqa", said + ".", fixes)


WIDTHS = (
    r"(?:embed_?dim|embedding(?: dim\w*| size)?|d_?model|hidden[_ "
    r"]?(?:size|dim)s?|n_embd|dim|model_dim|num_hiddens|emb\w*|memory dim\w*|qkv_features|feature "
    r"dim\w*|channels|inner_dim|key_dim|qkv_dim|width|d_out)"
)
HEADS = (
    r"(?:num_?(?:attention_)?heads?|n_?heads?|number of (?:attention "
    r")?heads|(?:decoder_|encoder_)?(?:num_)?attention_heads|head_num|heads|nhead)"
)
RULES: tuple[Rule, ...] = (
    says(
        (
            r"attention heads \(?(?P<a>\d+)\)? (?:must|should) be divisible by (?:the )?tensor.parallel\w*(?: \w+)* "
            r"\(?(?P<b>\d+)"
        ),
        "divisibility",
        "<a> heads are to be shared evenly by <b> devices (tensor parallel), and <b> does not divide <a>.",
        "a tensor parallel size that divides <a>",
    ),
    rule(
        (
            r"assert (?:\w+\.)?(?:n_heads?|num_(?:attention_)?heads) ?% "
            r"?(?:\w+\.)?(?:n_kv_heads?|num_(?:key_value|kv)_heads) ?== ?0"
        ),
        kv_heads,
    ),
    rule(
        r"(?:num_attention_heads|num_heads|n_heads?|num_q_heads|(?:number of )?query heads?)\W+(?:\((?P<heads>\d+)\) "
        r")?must be "
        r"(?:divisible by|a multiple of) "
        r"\W*(?:num_key_value_heads|num_kv_heads|n_kv_heads?|num_query_groups|kv_heads?|(?:the )?(?:number of "
        r")?key.?value heads)\W*(?P<kv>\d+)?",
        kv_heads,
    ),
    rule(r"Number of heads in key(?: and |/)value must divide (?:the )?number of heads in", kv_heads),
    rule(
        r"(?:hidden|embed\w*|model)\W*(?:size|dim\w*)? ?\(?(?P<width>\d+)\)? (?:is not a multiple of|must be "
        r"(?:divisible by|a multiple of)|is not divisible by) "
        rf"(?:the )?{HEADS}\W*\(?(?P<heads>\d+)",
        width_and_heads,
    ),
    rule(r"config\.n_?heads (?P<heads>\d+) must divide config\.\w+ (?P<width>\d+)", width_and_heads),
    rule(
        rf"\b{WIDTHS}\b.{{0,40}}?(?:must|should|has to|needs to|is not|not|cannot|can't) ?(?:be )?(?:evenly "
        rf")?(?:divisible|a multiple|dividable|divided)\b.{{0,40}}?{HEADS}"
        rf"[^\d]{{0,30}}?\W(?P<a>\d+)[^\d]{{1,60}}?(?P<b>\d+)",
        heads_and_width,
    ),
    rule(
        rf"\b{WIDTHS}\b\W{{0,3}}(?P<width>\d+)?.{{0,40}}?(?:must|should|has to|needs to|is not|not|cannot|can't) "
        r"?(?:be )?(?:evenly )?(?:divisible|a multiple|dividable|divided)\b"
        rf".{{0,40}}?{HEADS}\W{{0,3}}(?P<heads>\d+)?",
        width_and_heads,
    ),
    rule(rf"{HEADS}.{{0,30}}(?:must|should|does not) (?:evenly )?divide.{{0,20}}{WIDTHS}", width_and_heads),
    rule(
        rf"assert (?:self\.)?(?:[\w.]*{WIDTHS}) ?% ?(?:self\.)?[\w.]*{HEADS} ?== ?0|"
        rf"assert (?:self\.)?head_dim ?\* ?(?:self\.)?{HEADS} ?== ?(?:self\.)?{WIDTHS}",
        width_and_heads,
    ),
    says(
        r"embed_dim and num_heads must be greater than 0, got embed_dim=(?P<e>-?\d+) and num_heads=(?P<h>-?\d+)",
        "divisibility",
        "embed_dim is <e> and num_heads <h>; both must be at least 1, and the second must divide the first.",
        "one head, num_heads=1, is the smallest layer",
    ),
    says(
        (
            r"ZeroDivisionError: (?:integer )?(?:division or )?modulo by zero(?=.*heads)|integer division or modulo by "
            r"zero(?=.*heads)"
        ),
        "divisibility",
        "A head count (or head_dim) of 0 divides the width: num_heads is 0, or integer division made it 0.",
        "num_heads=1 or more; n_rep = num_heads // num_kv_heads needs num_kv_heads >= 1",
    ),
)
