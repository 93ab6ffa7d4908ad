"""Real models: what do trained heads do?

All heads first, then one layer of them as on page Attention; or what an edit does to the model; or a checkpoint file.
"""

import streamlit as st

from ui import frame, real_models

frame.begin("Real models", "what do trained heads do?", below=real_models.BELOW, pin=real_models.pinned)
real_models.view_controls()
if real_models.looks_at("checkpoint"):
    frame.part("checkpoint", real_models.checkpoint_section)
elif real_models.looks_at("effects"):
    frame.part("model", real_models.headline)
    frame.part("effects", real_models.effects)
else:
    frame.part("model", real_models.headline)
    frame.part("all_heads", real_models.all_heads)
    frame.part("layer_title", real_models.layer_title)
    real_models.layer_controls()
    left, right = st.columns(2, gap="medium")
    with left:
        frame.part("maps", real_models.maps)
    with right:
        frame.part("large_map", real_models.large_map)
    frame.part("closer_look", real_models.closer_look)
