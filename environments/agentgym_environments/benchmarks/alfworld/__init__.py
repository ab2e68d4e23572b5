"""ALFWorld's own games."""
