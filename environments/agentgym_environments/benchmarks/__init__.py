"""Environments around other people's engines, each an extra of its own: their packages are imported when an environment
is made."""
