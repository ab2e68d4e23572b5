"""Worlds around other people's engines, each an extra of its own: their packages are imported when a world is made."""
