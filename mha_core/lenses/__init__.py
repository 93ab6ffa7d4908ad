"""Lenses: pure functions from a `Run` (or an `Experiment`) to frozen records of data; looks are decided elsewhere."""
