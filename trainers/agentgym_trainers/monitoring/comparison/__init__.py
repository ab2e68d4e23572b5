"""Several runs side by side: found in folders, compared, drawn."""
