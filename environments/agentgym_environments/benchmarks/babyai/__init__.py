"""BabyAI: missions in grid rooms, of which a seventh by seventh is seen, told in words."""
