"""MHA Lab's core: multi-head attention, its inputs, masks, initial values and lenses. Never imports the dashboard."""

from mha_core.attention import MultiHeadAttention, scaled_dot_product_attention
from mha_core.config import AttentionConfig
from mha_core.errors import MhaError, Suggestion
from mha_core.experiment import Experiment, Run, run
from mha_core.init_schemes import INIT_SCHEMES, InitSpec
from mha_core.layouts import LAYOUTS, AttentionWeights
from mha_core.masks import MASKS, MaskSpec
from mha_core.sources.inputs import RandomSource, TextSource

__all__ = [
    "INIT_SCHEMES",
    "LAYOUTS",
    "MASKS",
    "AttentionConfig",
    "AttentionWeights",
    "Experiment",
    "InitSpec",
    "MaskSpec",
    "MhaError",
    "MultiHeadAttention",
    "RandomSource",
    "Run",
    "Suggestion",
    "TextSource",
    "run",
    "scaled_dot_product_attention",
]
