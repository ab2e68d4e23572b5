"""AppWorld, through its own package."""
