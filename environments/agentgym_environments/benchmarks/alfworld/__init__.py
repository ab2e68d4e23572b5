"""ALFWorld: its engine and language on kitchens of our own making."""
