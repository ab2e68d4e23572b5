"""Checks that an environment keeps the contract."""
