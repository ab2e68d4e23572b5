"""What the servers share: the back end's interface, parsing, responses, WebSockets, metrics, logs."""
