"""Engines: do all the ways of writing it agree, and which is faster here?

Agreement on the experiment is shown at once; times are measured when they are asked for.
"""

import streamlit as st

from ui import engines, frame

frame.begin("Engines", "do all the ways of writing it agree, and which is faster here?")
frame.part("agreement", engines.agreement)
st.markdown("##### Time and memory")
frame.part("measure", engines.measure)
