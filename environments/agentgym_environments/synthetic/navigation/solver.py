"""The solver: it knows the rooms it has been in and what it has opened, and looks for the rest."""

from __future__ import annotations

from agentgym_environments.synthetic.navigation.house import House, NavigationState, Spot, on


def next_action(house: House, state: NavigationState) -> str:
    carried = state.carried
    aims = {thing: spot for thing, spot in house.goals if state.things[thing] != spot}
    if carried in aims:
        room = aims[carried][0]
        if room in state.visited:
            return _bring(house, state, carried, aims[carried])
        return _look(house, state, doors_only=True)
    if carried is not None:
        return f"put {carried} on {house.furniture[state.here][0]}"
    known = {
        spot[0]: thing
        for thing in aims
        if (spot := state.things[thing]) is not None and spot[0] in state.visited and state.shows(spot)
    }
    if state.here in known:
        return f"take {known[state.here]}"
    if known:
        return f"go {house.path(state.here, set(state.visited), set(known))[0]}"
    return _look(house, state)


def _bring(house: House, state: NavigationState, thing: str, spot: Spot) -> str:
    if state.here != spot[0]:
        return f"go {house.path(state.here, set(state.visited), {spot[0]})[0]}"
    return f"put {thing} {on(spot[1])} {spot[1]}" if state.shows(spot) else f"open {spot[1]}"


def _look(house: House, state: NavigationState, doors_only: bool = False) -> str:
    """Go to the nearest room not seen, unless something closed is as near."""
    closed: dict[str, str] = {}
    for room in state.visited if not doors_only else ():
        for piece in house.furniture[room]:
            if not state.shows((room, piece)):
                closed.setdefault(room, piece)
    if state.here in closed:
        return f"open {closed[state.here]}"
    unknown = set(house.doors) - state.visited
    return f"go {house.path(state.here, set(state.visited), unknown | set(closed))[0]}"
