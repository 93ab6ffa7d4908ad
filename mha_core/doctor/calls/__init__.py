"""How any attention module is called in one uniform way: arguments, masks, sizes and signs, read and tried out."""
