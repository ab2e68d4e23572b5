"""Grading of answers by the metrics that are published for data sets."""
