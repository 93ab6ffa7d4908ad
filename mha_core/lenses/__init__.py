"""Lenses: pure functions from a `Run` (or an `Experiment`) to frozen records of data; how they look is decided elsewhere."""
