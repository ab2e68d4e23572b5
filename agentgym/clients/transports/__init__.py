"""HTTP and WebSocket connections, with retries and batching."""
