"""Trained models: where their weights are, loading, their tokens, and watching a pass from the inside."""
