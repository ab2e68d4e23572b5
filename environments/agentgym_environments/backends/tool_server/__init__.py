"""A server of tools (Model Context Protocol) of one's own, over its standard input and output or over HTTP."""
