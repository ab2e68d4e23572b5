"""TextArena: its single-player games, by name."""
