"""Questions that take reading: two actions, a search engine over a corpus, and the field's multi-hop data sets."""
