"""Shared parts of the servers: the back end's interface, parsing, responses, WebSockets, metrics, logs."""
