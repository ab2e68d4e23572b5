"""A run's report.html: its learning curves, and trajectories with their credit."""
