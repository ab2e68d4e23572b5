"""Base classes that environments share."""
