"""NetHack, by the NetHack Learning Environment: its screen as text, its keys by name."""
