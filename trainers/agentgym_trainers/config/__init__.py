"""A run's configuration: sections, options as schedules, error messages. Imports nothing of the trainer."""
