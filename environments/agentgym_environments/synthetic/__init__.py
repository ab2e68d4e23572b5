"""Environments whose tasks are generated here."""
