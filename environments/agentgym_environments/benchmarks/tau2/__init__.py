"""tau2-bench, through its own package."""
