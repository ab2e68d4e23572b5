"""Experiment trackers of a run: TensorBoard, Weights & Biases, MLflow, Trackio."""
