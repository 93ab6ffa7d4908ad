"""The sidebar: every choice of the experiment, in the order input, model, mask, init, engine.

Only what matters for the choices made is shown. Values may contradict one another here: that a width is not divisible
by the heads is a lesson, told by frame.py.
"""

from __future__ import annotations

import streamlit as st

from mha_core.fields import FIELDS
from mha_core.init_schemes import INIT_SCHEMES
from mha_core.sources.models.loading import is_loaded, load
from mha_core.sources.models.real_model import RealModel
from mha_core.sources.models.vocabularies import TRAINED_TOKENS
from mha_core.sources.models.weight_packages import PACKAGES
from ui import controls, panels, state

TOKEN_WORDS = {"word": "words", "char": "characters", "wordpiece": "WordPiece", "bpe": "BPE"}
EMBEDDING_WORDS = {"random": "random per token", "minilm": "MiniLM", "smollm2": "SmolLM2"}
ROW_SIZES = {"minilm": 0.06, "smollm2": 0.12}  # root mean square of a word's row
ALIKE_GAINS = {"minilm": 6.0, "smollm2": 3.0}  # with q and k the rows: a word looks at itself and at its like
NEED_STD = ("normal", "trunc_normal", "constant")
FILL_WORDS = {"zero": "zero row (safe)", "min": "smallest of the dtype", "-inf": "-inf"}


def draw() -> None:
    """Draw all controls into the sidebar."""
    with st.sidebar:
        with st.expander("Input", expanded=True):
            _input()
        with st.expander("Model", expanded=True):
            _model()
        with st.expander("Mask", expanded=True):
            _mask()
        with st.expander("Initialisation", expanded=True):
            _init()
        with st.expander("Engine", expanded=True):
            _engine()
        st.button("Reset everything", on_click=state.reset, width="stretch")


def _input() -> None:
    if not state.is_pinned("source"):
        controls.choose("source", "Source")
    _INPUTS[state.get("source")]()
    if state.get("source") != "pretrained":
        controls.choose("positions", "Positions")


def _text() -> None:
    controls.write("text", "Text, one sequence per line", 110)
    controls.choose("tokenizer", "Tokens", TOKEN_WORDS)
    controls.select("embeddings", "Embeddings", EMBEDDING_WORDS)
    _token_rows()
    _second_text()


def _random() -> None:
    controls.number("batch", "Batch B")
    controls.number("q_len", "Queries Sq")
    controls.number("k_len", "Keys Sk", placeholder="as queries: self-attention")
    controls.select("distribution", "Distribution")


def _pretrained() -> None:
    words = {name: package.title for name, package in PACKAGES.items()}
    controls.pick_or_write("model", "Model", words, "a folder, or a name on the hub")
    controls.write("text", "Text, one sequence per line", 110)
    model = _loaded_model()
    if model is None:
        return
    controls.slide("layer", "Layer", 0, max(1, len(model.sites) - 1))
    if any(site.stack for site in model.sites):
        _second_text()
    if model.reader.note:
        st.caption(panels.plain(f"Note: {model.reader.note}."))


def _loaded_model() -> RealModel | None:
    """Give the chosen model; None where it cannot be had, which the page tells."""
    return load(state.get("model")) if is_loaded(state.get("model")) else None


def _checkpoint() -> None:
    if not state.get("checkpoint"):
        st.caption("Upload a checkpoint on page Real models, and choose one of its layers there.")
    else:
        controls.number("checkpoint_layer", "Layer of the checkpoint")
    _text()


_INPUTS = {"text": _text, "random": _random, "pretrained": _pretrained, "checkpoint": _checkpoint}


def _token_rows() -> None:
    """Say how small the rows of a token table are, and offer the layer that compares the rows themselves."""
    model = state.get("embeddings")
    if model == "random":
        return
    st.caption(f"Numbers of about {ROW_SIZES[model]}: with random matrices all scores are near 0.")
    trained = TRAINED_TOKENS[model]
    fitting = {"tokenizer": trained.tokenizer, "embed_dim": trained.width, "kdim": None, "vdim": None}
    compared = {"init": "identity", "init_targets": ("q", "k"), "gain": ALIKE_GAINS[model], "init_packed": False}
    one_head = {"num_heads": 1, "num_kv_heads": None, "head_size": None, "scale": None}
    unplaced = {"positions": "none", "rope_theta": None}
    st.button(
        "Show which words are alike",
        key="alike",
        on_click=state.put,
        kwargs=fitting | compared | one_head | unplaced,
        help="one head with q and k the rows themselves, times a gain",
    )


def _second_text() -> None:
    is_cross = state.get("memory_text") is not None
    key = state.fill("second_text", is_cross)
    st.toggle("Second text (cross-attention)", is_cross, key=key, on_change=state.take_second_text)
    if is_cross:
        controls.write("memory_text", "Second text: keys and values", 80)


def _model() -> None:
    source = state.get("source")
    if source == "pretrained":
        controls.number("scale", "Scale on q·k", step=0.05, placeholder="the model's own")
        controls.number("dropout", "Dropout", step=0.1)
        model = _loaded_model()
        if model is not None:
            heads = [f"{site.index}.{head}" for site in model.sites for head in range(site.config.num_heads)]
            controls.pick_words("muted", "Muted heads, layer.head", heads, "none")
        return
    if source == "checkpoint":
        controls.number("num_heads", "Heads H, where the file does not say")
        controls.number("scale", "Scale on q·k", step=0.05, placeholder="1/sqrt(head_dim)")
        controls.number("dropout", "Dropout", step=0.1)
        return
    controls.slide("num_heads", "Heads H", 1, 16)
    controls.number("embed_dim", "Width E (embed_dim)", step=8)
    controls.number("num_kv_heads", "Key/value heads Hkv", placeholder="as heads")
    controls.number("head_size", "Head width D", placeholder="E / H")
    controls.number("scale", "Scale on q·k", step=0.05, placeholder="1/sqrt(head_dim)")
    controls.number("dropout", "Dropout", step=0.1)
    controls.switch("bias", "Bias")
    if state.get("positions") == "rotary":
        controls.number("rope_theta", "Rotary base", placeholder="10000")
    controls.number("kdim", "Key input width", placeholder="as E")
    controls.number("vdim", "Value input width", placeholder="as E")


def _mask() -> None:
    kinds = state.get("mask")
    if state.get("source") == "pretrained":
        controls.switch("own_mask", "The model's own mask")
        controls.choose("reach", "Changes reach", {"layer": "this layer", "all": "all layers of its kind"})
    controls.flags("mask", "Masks")
    if "local" in kinds:
        controls.slide("window", "Window w, tokens", 0, 32)
        controls.choose("direction", "Window reaches")
    if "causal" in kinds or "local" in kinds:
        controls.choose("alignment", "Diagonal when Sq ≠ Sk")
    if "custom" in kinds:
        _custom_mask()
    controls.select("fill", "Hidden scores become", FILL_WORDS)
    st.caption(
        "True = may attend, as in PyTorch's scaled_dot_product_attention; nn.MultiheadAttention means the opposite."
    )


def _custom_mask() -> None:
    matrix = state.get("custom_mask")
    shown = "\n".join(matrix) if matrix else state.mask_draft()[0]
    st.text_area(
        "Custom mask: rows of 0 and 1",
        shown,
        key=state.fill("custom_mask", shown),
        height=110,
        on_change=state.take_custom_mask,
        help=FIELDS["custom_mask"].help,
    )
    st.file_uploader(
        "or a .csv, .txt or .npy file", type=["csv", "txt", "npy"], key="custom_file", on_change=state.take_custom_file
    )


def _init() -> None:
    if state.get("source") == "checkpoint":
        st.caption("The weights are those of the checkpoint.")
        return
    if state.get("source") == "pretrained":
        controls.flags("replaced", "Matrices drawn anew")
        if not state.get("replaced"):
            return
    controls.select("init", "Scheme")
    scheme = INIT_SCHEMES[state.get("init")]
    st.caption(f"{scheme.summary}. {scheme.source}.")
    if scheme.name in NEED_STD:
        controls.number("init_std", "Value" if scheme.name == "constant" else "Standard deviation", step=0.01)
    controls.number("gain", "Gain", step=0.5)
    if state.get("source") != "pretrained":
        controls.flags("init_targets", "Applied to (the others stay Xavier)")
    controls.choose("init_bias", "Biases")
    if state.get("projection") == "fused":
        controls.switch("init_packed", "Draw q, k, v as one packed matrix")


def _engine() -> None:
    controls.choose("projection", "Projection")
    if state.get("projection") == "fused":
        controls.choose("qkv_layout", "Order in the fused matrix")
    controls.choose("head_split", "Head split", {"view": "view + permute"})
    controls.choose("kernel", "Kernel")
    controls.select("dtype", "Number format")
    controls.number("seed", "Seed")
