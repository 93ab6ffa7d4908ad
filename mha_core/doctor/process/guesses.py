"""Values for a constructor's arguments, guessed from their names: sizes that fit one another, and plain defaults.

Holds no knowledge of files, classes or configs. E is the width of a token, H the number of heads, D = E / H the width
of a head. Guessed sizes differ from one another and from the lengths of the probes, so that a swapped axis is seen.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_LENGTH, MAX_BATCH, VOCABULARY, LAYERS = 64, 16, 97, 2
TRIES = 40
UNKNOWN = object()
_NAMES = {
    "embed_dim": "embeddim embdim dmodel dim hiddensize nembd nembed embedsize embsize embeddingdim embeddingsize"
    " modeldim dimmodel modelsize numhiddens numhidden hiddendim hiddenunits hidden dhidden channels inchannels channel"
    " inplanes planes numchannels nchannels inputdim indim dimin din inputsize insize infeatures features nfeatures"
    " numfeatures dfeature featuredim emb embed embedding width e d c dout outdim dimout outputdim outchannels"
    " outputsize outfeatures size units ndim nstate nhidden nunits dembed dimembed querydim querysize qdim queriesdim"
    " dimq keysize valuesize kdim vdim keysdim valuesdim dimk dimv valuedim contextdim crossattentiondim crossdim"
    " memorydim encoderdim decoderdim latentdim kvdim sourcedim targetdim tokendim attndim attentiondim allheadsize"
    " innerdim doutkq totalkeydepth totalvaluedepth depthmodel modelwidth modeldimension embeddimension"
    " nx nfeat nfeats dimfeat dinput featdim nchannel inplane",
    "num_heads": "numheads nheads heads h nhead numattentionheads nattentionheads numhead attentionheads headcount nh"
    " numqheads nqheads numqueryheads qheads headnum attnheads numattnheads numberofheads headsnum",
    "num_kv_heads": "numkvheads nkvheads kvheads numkeyvalueheads nkvhead hkv nkvgroups numkvgroups numquerygroups"
    " nquerygroups numgroups ngroups groups kvgroups nlocalkvheads nheadskv numheadskv nheadkv kvnumheads",
    "head_dim": "headdim dimhead dhead headsize dk dv dq dqk dkv dqkv dperhead dimperhead headchannels numheadchannels"
    " qkdim qkheaddim vheaddim headwidth headfeatures perheaddim dimkey dimvalue headembeddim",
    "length": "maxlen blocksize maxseqlen contextlength contextlen contextsize maxlength seqlen maxpositionembeddings"
    " npositions nctx maxseqlength context sequencelength seqlength ncontext maxsequencelength maxposition ctxlen"
    " maxpositions maxtokens maxcontext maxtime ctxsize maxcontextlength t maxpos maxrelativeposition numtokens",
    "dropout": "dropout dropoutp p attndropout attndrop residdropout attentiondropout projdrop projdropout dropoutrate"
    " droprate attnpdrop residpdrop pdropout pdrop attentionprobsdropoutprob hiddendropoutprob dropoutprob embdpdrop"
    " attentiondropoutprob attndropoutp dropprob attndroprate drop residpdropout embdrop",
    "flag": "bias qkvbias usebias addbias biasqkv outbias projbias attentionbias mask bidirectional verbose"
    " flash useflash flashattention decoder isdecoder returnattention returnweights needweights outputattentions"
    " crossattention iscrossattention concat residual useresidual kvcache cache usecache rope userope training"
    " outputhiddenstates qknorm useqknorm qkscale inferencemode debug",
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_SINGLE: Mapping[str, Any] = {
    "batchfirst": True,
    "device": None,
    "dtype": None,
    "maskvalue": None,
    "maxbatchsize": MAX_BATCH,
    "batchsize": MAX_BATCH,
    "vocabsize": VOCABULARY,
    "nlayer": LAYERS,
    "nlayers": LAYERS,
    "numlayers": LAYERS,
    "numhiddenlayers": LAYERS,
    "layernumber": 1,
    "base": 10000.0,
    "windowsize": 4,
    "window": 4,
    "activation": "gelu",
    "hiddenact": "gelu",
    "multipleof": 8,
    "initializerrange": 0.02,
}
_LIKE = (  # for names that none of the lists holds, in this order
    (r"drop", "dropout"),
    (r"kv.*(heads|groups)|(heads|groups).*kv", "num_kv_heads"),
    (r"head.*(dim|size|width)|(dim|size|width).*head", "head_dim"),
    (r"heads", "num_heads"),
    (r"^(is|use|has|with|add|do|apply|return|enable)_", "flag"),
    (r"eps", "eps"),
    (r"theta|rope_base|rotary_base", "theta"),
    (r"(intermediate|ffn?|feedforward|mlp)_?(size|dim|hidden|width)?$", "wide"),
    (r"layer_?(idx|id|index|num)|^(idx|index|depth|layer)$", "layer"),
    (r"max.*(len|pos|seq|ctx|context|tokens)|seq.*len|context.*(len|size)|block_size", "length"),
    (r"window|radius|chunk|block|bucket|stride", "windowsize"),
    (r"scale|temperature", "scale"),
    (r"dim|embed|hidden|channels|features|width", "embed_dim"),
)


@dataclass(frozen=True)
class Sizes:
    """Sizes that fit: embed_dim = num_heads * head_dim unless both were given otherwise."""

    embed_dim: int = 24
    num_heads: int = 3
    num_kv_heads: int = 3
    head_dim: int = 8


@dataclass(frozen=True)
class Wishes:
    """What a person declared about the module; a constructor that has an argument of that meaning gets it."""

    embed_dim: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    causal: bool | None = None
    batch_first: bool | None = None
    given: Mapping[str, Any] = field(default_factory=dict)


def kind_of(name: str, others: frozenset[str] = frozenset()) -> str | None:
    """Tell what an argument means by its name and by its neighbours' names: "embed_dim", "flag" ..., None unknown."""
    plain = _plain(name)
    kinds = {_KINDS.get(_plain(other)) for other in others}
    if plain in ("causal", "iscausal", "masked", "usecausalmask", "causalmask"):
        return "causal"
    if plain == "batchfirst":
        return "batch_first"
    if plain in ("keydim", "dimkey"):  # beside a width and heads it is a head's own, as in LeViT; else the keys' width
        return (
            "head_dim" if {"embed_dim", "num_heads"} <= kinds and "querydim" not in map(_plain, others) else "embed_dim"
        )
    if plain in ("dk", "dv", "dq", "dkq") and not kinds & {"num_heads"} and "din" in map(_plain, others):
        return "embed_dim"  # one head over the whole width
    if plain in _SINGLE:
        return plain
    if plain in _KINDS:
        return _KINDS[plain]
    return next((kind for pattern, kind in _LIKE if re.search(pattern, name.lower())), None)


def kinds_of(parameters: Mapping[str, inspect.Parameter]) -> dict[str, str | None]:
    """Tell what each argument means. A first one without a known name is the width, a second the number of heads."""
    names = frozenset(parameters)
    kinds = {name: kind_of(name, names) for name in parameters}
    for name in list(parameters)[:2]:
        asked = parameters[name]
        if kinds[name] is None and asked.default is asked.empty and asked.annotation in (asked.empty, int):
            kinds[name] = next((kind for kind in ("embed_dim", "num_heads") if kind not in kinds.values()), None)
    return kinds


def value_of(kind: str | None, sizes: Sizes, wishes: Wishes) -> Any:
    """Give the value of an argument of that kind; `UNKNOWN` where nothing is usual."""
    if kind is None:
        return UNKNOWN
    if kind in ("embed_dim", "num_heads", "num_kv_heads", "head_dim"):
        return getattr(sizes, kind)
    if kind == "causal":
        return bool(wishes.causal)
    if kind == "batch_first":
        return True if wishes.batch_first is None else wishes.batch_first
    known = {"length": MAX_LENGTH, "dropout": 0.1, "flag": False, "eps": 1e-5, "theta": 10000.0, "layer": 0}
    known |= {"wide": 4 * sizes.embed_dim, "scale": sizes.head_dim**-0.5} | dict(_SINGLE)
    return known.get(kind, UNKNOWN)


def of_annotation(annotation: Any) -> Any:
    """Guess a value from a type alone: False, 0.1 or None; `UNKNOWN` for the rest."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    if "Optional" in text or "None" in text:
        return None
    if text.lower().startswith(("tuple", "list", "set", "frozenset", "typing.sequence", "sequence", "iterable")):
        return ()
    return False if text == "bool" else UNKNOWN


def fitting(fixed: Mapping[str, int], *, grouped: bool) -> Iterator[Sizes]:
    """Give sizes to try, the most telling first, at most `TRIES`; settled ones that do not fit as they are.

    Args:
        fixed: sizes that are settled, by the names of `Sizes`.
        grouped: whether the module has a number of key/value heads, so that there should be fewer of them.
    """
    found = dict.fromkeys(_all_fitting(fixed, grouped))
    yield from sorted(found, key=lambda sizes: _ambiguity(sizes, grouped))[:TRIES] or [
        Sizes(**{**vars(Sizes()), **fixed})
    ]


def _all_fitting(fixed: Mapping[str, int], grouped: bool) -> Iterator[Sizes]:
    embed, head_dim, kv = (fixed.get(name) for name in ("embed_dim", "head_dim", "num_kv_heads"))
    usual = [6, 4, 8, 12, 2, 1] if grouped else [3, 6, 4, 2, 8, 5, 12, 1]
    groups = [n for n in usual if n % kv == 0 and n > kv] or [2 * kv] if kv else usual
    heads = [fixed["num_heads"]] if "num_heads" in fixed else groups
    for num_heads in heads:
        for dim in [head_dim] if head_dim else [8, 6, 16, 4, 32, 64]:
            if embed and not head_dim:
                if embed % num_heads:
                    continue
                dim = embed // num_heads
            divisors = [n for n in range(1, num_heads + 1) if num_heads % n == 0 and (kv is None or n == kv)]
            fewer = [n for n in divisors if 1 < n < num_heads] if grouped else divisors[-1:]
            yield Sizes(embed or num_heads * dim, num_heads, kv or (fewer or divisors or [1])[0], dim)


def _ambiguity(sizes: Sizes, grouped: bool) -> int:
    doubts = 4 * (sizes.head_dim == sizes.num_heads) + 2 * (sizes.head_dim % 2) + 3 * (sizes.num_heads == 1)
    return doubts + 2 * (grouped and sizes.num_kv_heads in (1, sizes.num_heads)) + (sizes.head_dim != 8)


def _plain(name: str) -> str:
    return name.lower().replace("_", "")
