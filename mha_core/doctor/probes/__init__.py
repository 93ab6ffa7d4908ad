"""What the checks share: inputs to try, and what is read from the answers."""
