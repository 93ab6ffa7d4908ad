"""The families of error texts, one file each: patterns, and the arithmetic that finds the size which does not fit."""
