"""Rollouts of a policy in an environment, and their trajectories."""
