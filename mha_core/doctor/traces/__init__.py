"""The operations of one call, and the attention found in them."""
