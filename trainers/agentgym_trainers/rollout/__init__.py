"""Rollouts, from tasks to trajectories: the environment, the token policy, sources of episodes, Monte Carlo
branching."""
