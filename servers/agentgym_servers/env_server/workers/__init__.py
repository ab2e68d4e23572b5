"""Worker processes that run environments."""
