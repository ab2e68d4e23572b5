"""Logs of a run, and the guards that stop it."""
