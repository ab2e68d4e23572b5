"""Backends that environments run on and search in: sandboxes, browsers, desktops, retrievers."""
