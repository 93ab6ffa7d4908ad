"""The sidebar: every choice of the experiment, in the order input, model, mask, init, engine.

Only what matters for the choices made is shown. Values may contradict one another here: that a width is not divisible
by the heads is a lesson, told by frame.py.
"""

from __future__ import annotations

import streamlit as st

from mha_core.fields import FIELDS
from mha_core.init_schemes import INIT_SCHEMES
from ui import controls, state

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
    controls.choose("source", "Source")
    if state.get("source") == "text":
        controls.write("text", "Text, one sequence per line", 110)
        controls.choose("tokenizer", "Tokens", {"word": "words", "char": "characters"})
        _second_text()
    else:
        controls.number("batch", "Batch B")
        controls.number("q_len", "Queries Sq")
        controls.number("k_len", "Keys Sk", placeholder="as queries: self-attention")
        controls.select("distribution", "Distribution")
    controls.choose("positions", "Positions")


def _second_text() -> None:
    is_cross = state.get("memory_text") is not None
    key = state.fill("second_text", is_cross)
    st.toggle("Second text (cross-attention)", is_cross, key=key, on_change=state.take_second_text)
    if is_cross:
        controls.write("memory_text", "Second text: keys and values", 80)


def _model() -> None:
    controls.slide("num_heads", "Heads H", 1, 16)
    controls.number("embed_dim", "Width E (embed_dim)", step=8)
    controls.number("num_kv_heads", "Key/value heads Hkv", placeholder="as heads")
    controls.number("scale", "Scale on q·k", step=0.05, placeholder="1/sqrt(head_dim)")
    controls.number("dropout", "Dropout", step=0.1)
    controls.switch("bias", "Bias")
    if state.get("positions") == "rotary":
        controls.number("rope_theta", "Rotary base", placeholder="10000")
    controls.number("kdim", "Key input width", placeholder="as E")
    controls.number("vdim", "Value input width", placeholder="as E")


def _mask() -> None:
    kinds = state.get("mask")
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
    controls.select("init", "Scheme")
    scheme = INIT_SCHEMES[state.get("init")]
    st.caption(f"{scheme.summary}. {scheme.source}.")
    if scheme.name in NEED_STD:
        controls.number("init_std", "Value" if scheme.name == "constant" else "Standard deviation", step=0.01)
    controls.number("gain", "Gain", step=0.5)
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
