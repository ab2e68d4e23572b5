"""What a run logs, and the guards that stop it."""
