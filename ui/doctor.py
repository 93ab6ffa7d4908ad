"""Page Doctor: the ways in, and the explainer of error texts. The check-up of a module is in `ui.doctor_module`.

A pasted text never becomes Markdown and is not kept in the link: it may hold what is nobody else's business.
"""

from __future__ import annotations

import streamlit as st

from mha_core.doctor.explain import Explanation, explain
from ui import doctor_module, panels, state

VIEWS = {"error": "An error text", "module": "An attention module"}
MAX_TEXT = 20_000
SIZES = {
    "batch": "Batch B",
    "q_len": "Queries Sq",
    "k_len": "Keys Sk",
    "embed_dim": "Width E",
    "num_heads": "Heads H",
    "num_kv_heads": "KV heads Hkv",
    "head_dim": "Head width D",
}
EXAMPLES = {
    "heads that do not divide": "RuntimeError: shape '[2, 10, 7, 73]' is invalid for input of size 10240",
    "a mask of the wrong shape": "RuntimeError: The shape of the 2D attn_mask is torch.Size([77, 77]), but should be "
    "(10, 10).",
    "shared heads": "RuntimeError: The size of tensor a (32) must match the size of tensor b (8) at non-singleton "
    "dimension 1",
    "half precision": "RuntimeError: value cannot be converted to type at::Half without overflow",
}


def other_entries() -> None:
    """Link what other pages read: recorded gradient norms, and checkpoint files."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.caption("On other pages:", width="content")
        if st.button("Gradient norms of my model", key="to_norms", type="tertiary",
                     on_click=state.put, kwargs={"lab": "own_model"}):  # fmt: skip
            st.switch_page("pages/3_Gradients.py")
        if st.button("A checkpoint file", key="to_checkpoint", type="tertiary",
                     on_click=state.put, kwargs={"real_view": "checkpoint"}):  # fmt: skip
            st.switch_page("pages/6_Real_models.py")


def section() -> None:
    """Draw the way in that is chosen."""
    if state.get("doctor_view") == "module":
        doctor_module.section()
    else:
        _error_text()


def _error_text() -> None:
    example = st.pills("Examples", list(EXAMPLES), default=next(iter(EXAMPLES)), key="error_example")
    text = st.text_area(
        "Error text, or a whole traceback",
        EXAMPLES.get(example or "", ""),
        height=120,
        max_chars=MAX_TEXT,
        key=f"error_text_{example}",
        placeholder="Paste what torch, einops, transformers or xformers said, then press Ctrl+Enter",
    )
    with st.expander("Sizes, if you know them: they tell which number is which"):
        columns = st.columns(len(SIZES))
        sizes = {
            name: int(value)
            for column, (name, label) in zip(columns, SIZES.items(), strict=True)
            if (value := column.number_input(label, 1, 2**31, None, key=f"error_{name}")) is not None
        }
    if text and text.strip():
        _show(explain(text, sizes))


def _show(found: Explanation) -> None:
    with st.container(border=True, key="explanation"):
        kind = found.kind.replace("_", " ")
        if found.known:
            st.badge(kind, color="blue")
        else:
            st.badge(f"not known{f'; nearest: {kind}' if kind else ''}", color="gray")
        st.markdown(panels.plain(found.explanation))
        if found.try_:
            st.markdown("**Try**")
            st.code("\n".join(found.try_), language=None, wrap_lines=True)
