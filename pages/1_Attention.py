"""Attention: who attends to whom?

The maps are drawn first, the words above them while the browser paints, and the large map last.
"""

import streamlit as st

from ui import attention, frame

frame.begin("Attention", "who attends to whom?")
above = st.container()
attention.view_controls()
left, right = st.columns(2, gap="medium")
with left:
    frame.part("maps", attention.maps)
with above:
    frame.part("headline", attention.headline)
    frame.part("notices", attention.notices)
with right:
    frame.part("large_map", attention.large_map)
frame.part("closer_look", attention.closer_look)
