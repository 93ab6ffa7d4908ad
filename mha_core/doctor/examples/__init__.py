"""Small modules to try the doctor on: three with a mistake that no shape betrays, and one that is sound."""
