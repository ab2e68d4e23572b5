"""Models: checkpoints, attention over prefix trees, packed forward passes, adapters, process groups."""
