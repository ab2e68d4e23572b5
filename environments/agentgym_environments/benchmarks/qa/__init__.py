"""Questions of a data file, each answered in one turn."""
