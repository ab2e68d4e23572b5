"""vLLM as the engine: its client, our own server, weight sync."""
