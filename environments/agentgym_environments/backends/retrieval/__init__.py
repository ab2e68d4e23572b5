"""Retrievers: BM25, dense vectors, and a server's over HTTP."""
