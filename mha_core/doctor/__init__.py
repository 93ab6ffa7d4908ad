"""The doctor: check-ups of anybody's attention module, and the explainer of error texts."""
