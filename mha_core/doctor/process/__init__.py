"""Foreign code: found, constructed and checked up in a process of its own."""
