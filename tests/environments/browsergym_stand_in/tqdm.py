"""Found, and not used."""
