"""TextWorld: generated text adventures, compiled on first use."""
