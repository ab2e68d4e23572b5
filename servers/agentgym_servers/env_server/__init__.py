"""The environment server: sessions of environments over HTTP, WebSocket and MCP."""
