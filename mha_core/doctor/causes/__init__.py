"""From a trace to a named mistake and its line."""
