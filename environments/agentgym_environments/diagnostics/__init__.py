"""Small environments that show whether a method works: their solutions are known."""
