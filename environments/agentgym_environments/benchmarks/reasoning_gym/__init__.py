"""One question, one answer: the data sets of reasoning-gym, scored by their own verifiers."""
