"""Containers of a real Docker engine, one an episode, for tasks that come with an image of their own."""
