"""Trajectories as tensors: the batch, its sequences and segments, reward shaping, filters, the replay buffer."""
