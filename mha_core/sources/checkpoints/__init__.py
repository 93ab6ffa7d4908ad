"""Checkpoint files read safely: what they hold is listed, read tensor by tensor, and never executed."""
