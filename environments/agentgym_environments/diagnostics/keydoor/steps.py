"""The four ways to go, as (x, y) steps; x grows east, y south."""

STEPS = {"north": (0, -1), "south": (0, 1), "east": (1, 0), "west": (-1, 0)}

OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
