"""Cost: what does each step cost?

Closed forms first, other counts beside them, what is measured last and only when asked for.
"""

import streamlit as st

from ui import controls, cost, cost_machine, frame

frame.begin("Cost", "what does each step cost?", below=cost.BELOW)
frame.part("cost_headline", cost.headline)
cost.view_controls()
frame.part("cost_bars", cost.bars)
frame.part("cost_table", cost.table)
left, right = st.columns(2, gap="large")
with left:
    frame.part("cost_growth", cost.growth)
with right:
    controls.number("cost_context", "Context, cached tokens", step=1024)
    frame.part("cost_groups", cost.groups)
frame.part("cost_memory", cost.memory)
frame.part("cost_truth", cost.truth)
frame.part("cost_machine", cost_machine.machine)
