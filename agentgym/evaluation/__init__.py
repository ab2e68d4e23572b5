"""Evaluation of policies on suites, with statistics and baselines."""
