"""Mistakes with positions."""

from mha_core.clinic.record import Mistake

TABLES = (
    "angles = torch.arange(Sk)[:, None] * theta ** (-torch.arange(0, D, 2) / D)\n"
    "cos, sin = angles.cos().to(k.dtype), angles.sin().to(k.dtype)\n"
)
POSITIONS = (
    Mistake(
        name="rotary_pairs_of_neighbours",
        title="Rotary pairs of another layout",
        kind="position",
        symptoms=("trains_poorly", "nothing"),
        steps=("position",),
        wrong=TABLES + "def rotate(x, cos, sin):  # pairs (0, 1), (2, 3), …\n"
        "    a, b = x[..., 0::2], x[..., 1::2]\n"
        "    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)\n"
        "q, k = rotate(q, cos[Sk - Sq:], sin[Sk - Sq:]), rotate(k, cos, sin)",
        right=TABLES + "def rotate(x, cos, sin):  # pairs (0, D/2), (1, D/2 + 1), …\n"
        "    a, b = x.chunk(2, -1)\n"
        "    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)\n"
        "q, k = rotate(q, cos[Sk - Sq:], sin[Sk - Sq:]), rotate(k, cos, sin)",
        needs=("own", "rotary", "tokens", "self"),
        notice="Only loaded weights suffer; token 0, which is not turned, is right.",
        fix="Permute the rows of Wq and Wk when changing the layout; never those of Wv.",
        lesson="Meta's and GPT-J's code turn neighbours, transformers' LLaMA turns halves.",
    ),
    Mistake(
        name="rotary_restarts",
        title="New queries counted from 0",
        kind="position",
        symptoms=("trains_poorly", "nothing"),
        steps=("position",),
        wrong="q, k = turn(q, 0), turn(k, 0)",
        right="q, k = turn(q, Sk - Sq), turn(k, 0)",
        needs=("own", "rotary", "cross"),
        check="decode",
        notice="The full pass is right, decoding with a cache drifts.",
        fix="The first new query stands at position Sk − Sq.",
        lesson="Rotary attention sees distances: a query at the wrong place sees wrong ones.",
    ),
    Mistake(
        name="slopes_from_zero",
        title="ALiBi slopes counted from 0",
        kind="position",
        symptoms=("trains_poorly", "nothing"),
        steps=("scores",),
        wrong="slopes = 2.0 ** (-8 * torch.arange(H) / H)\n"
        "distance = (torch.arange(Sk) - torch.arange(Sk - Sq, Sk)[:, None]).abs()\n"
        "scores = (q * scale) @ k.transpose(-2, -1) - (slopes[:, None, None] * distance).to(q.dtype)",
        right="slopes = 2.0 ** (-8 * torch.arange(1, H + 1) / H)\n"
        "distance = (torch.arange(Sk) - torch.arange(Sk - Sq, Sk)[:, None]).abs()\n"
        "scores = (q * scale) @ k.transpose(-2, -1) - (slopes[:, None, None] * distance).to(q.dtype)",
        needs=("own", "tokens", "unrotated"),
        notice="Every head is one step too steep and looks too near.",
        fix="2^(−8(h + 1) / H) for a power of two; other numbers of heads take every second slope of the double.",
        lesson="A formula for powers of two, read with the wrong first index.",
    ),
)
