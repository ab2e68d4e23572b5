"""Loaders of tasks from the formats that the field uses."""
