"""ArCHer's twin critic (Zhou et al. 2024) and Digi-Q: Q and V of utterances, learned off-policy."""
