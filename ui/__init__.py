"""How the product is shown: the home of streamlit (beside pages/) and plotly."""
