"""The router: which pages there are, and nothing else.

The first page answers at `/` and at its own address, so that every page has a link of its own.
"""

import streamlit as st

ATTENTION = "pages/1_Attention.py"
PAGES = {
    "Attention": ATTENTION,
    "Shapes": "pages/2_Shapes.py",
    "Gradients": "pages/3_Gradients.py",
    "Cost": "pages/4_Cost.py",
    "Engines": "pages/5_Engines.py",
    "Real models": "pages/6_Real_models.py",
    "Clinic": "pages/7_Clinic.py",
    "Doctor": "pages/8_Doctor.py",
}

home = st.Page(ATTENTION, title="Attention", url_path="home", default=True, visibility="hidden")
pages = [st.Page(path, title=title, url_path=title.replace(" ", "_")) for title, path in PAGES.items()]
st.navigation([home, *pages]).run()
