"""A negotiation over books, hats and balls."""
