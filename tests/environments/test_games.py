"""Games: rules, opponents, solvers, roles on the wire, and how much a policy can be beaten by."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path
from typing import Any

import gymnasium.utils.env_checker
import numpy as np
import pytest

import agentgym_environments.games
from agentgym import registry
from agentgym.conformance.run import check_env
from agentgym.errors import BadRequest, ConfigError
from agentgym_environments.base.two_player_env import PATIENCE
from agentgym_environments.games.connect_four import env as connectfour
from agentgym_environments.games.connect_four.bitboard import WIN, Position, rated, search
from agentgym_environments.games.exploitability import (
    best_response,
    exploitability,
    kuhn_poker,
    tic_tac_toe,
    uniform,
    value,
    views,
)
from agentgym_environments.games.kuhn_poker import env as kuhn
from agentgym_environments.games.negotiation import env as negotiation
from agentgym_environments.games.negotiation import tables
from agentgym_environments.games.tic_tac_toe import env as tictactoe

GAMES = [name for name in registry.list_envs() if registry.get_spec(name).family == "games"]
SELF = [name for name in GAMES if name.endswith("-self")]
ALONE = [name for name in GAMES if name not in SELF]
README = Path(agentgym_environments.games.__file__).with_name("README.md")


def make(name: str) -> Any:
    """With Connect Four's solver made quick."""
    return registry.make(name, **({"depth": 1} if name.startswith("connect-four") else {}))


def finish(env, seed=0, options=None, choose=None) -> list[Any]:
    """Everything an episode says; without `choose`, random legal moves."""
    random = np.random.default_rng(seed)
    steps, over = [env.reset(seed=seed, options=options)], False
    while not over:
        legal = steps[-1][-1]["available_actions"]
        steps.append(env.step(choose(steps[-1]) if choose else str(random.choice(legal))))
        over = steps[-1][2] or steps[-1][3]
    return steps


@pytest.mark.parametrize("name", GAMES)
def test_the_spec_says_what_the_class_does(name):
    spec, env = registry.get_spec(name), registry.make(name)
    assert env.env_spec == spec
    assert spec.id == name
    assert spec.family == "games"
    assert ("two_player" in spec.capabilities) == (name in SELF)


@pytest.mark.parametrize("name", [name for name in GAMES if name.startswith("connect-four")])
def test_connect_four_keeps_the_contract(name):
    """The other games are checked with all quick environments."""
    env = make(name)
    gymnasium.utils.env_checker.check_env(env, skip_render_check=True)
    if name != "connect-four":
        findings = check_env(lambda: make(name), tasks=4)
        assert [finding.rule for finding in findings if not finding.ok] == []


@pytest.mark.envs
def test_the_conformance_rules_are_kept_by_connect_four_as_it_is():
    findings = check_env(lambda: registry.make("connect-four"), tasks=10)
    assert [finding.rule for finding in findings if not finding.ok] == []


@pytest.mark.parametrize(
    ("name", "tasks"),
    [("tic-tac-toe", 34), ("tic-tac-toe:opponent=random", 34), ("tic-tac-toe-expert", 34), ("negotiation", 60),
     ("negotiation:opponent=random", 60), pytest.param("connect-four", 60, marks=pytest.mark.envs)],
)  # fmt: skip
def test_the_solver_succeeds(name, tasks):
    env = registry.make(name)
    won = [
        finish(env, task, {"split": "test", "task": task}, lambda _: env.solver())[-1][4]["success"]
        for task in range(tasks)
    ]
    assert np.mean(won) >= 0.95


@pytest.mark.parametrize("name", SELF)
def test_every_step_names_its_role_and_what_each_role_won(name):
    env = make(name)
    for seed in range(6):
        steps, roles = finish(env, seed, {"task": seed}), set()
        for before, (observation, reward, _, _, info) in itertools.pairwise(steps):
            role = before[-1]["role"]
            roles.add(role)
            assert reward == info["rewards"][role]
            if not name.startswith("negotiation"):
                assert sum(info["rewards"]) == 0
            assert observation
        assert roles == {0, 1}
        assert len(steps[-1][4]["successes"]) == 2
        assert steps[-1][4]["success"]  # the game was played by its rules


@pytest.mark.parametrize("name", ALONE)
def test_against_an_opponent_reward_counts_its_reply(name):
    env = make(name)
    roles = set()
    for task in range(4):
        steps = finish(env, task, {"task": task})
        assert len({step[-1]["role"] for step in steps}) == 1
        roles.add(steps[0][-1]["role"])
        role, totals = steps[0][-1]["role"], env.scores
        assert sum(step[1] for step in steps[1:]) == pytest.approx(totals[role])
        assert env.success == steps[-1][4]["successes"][role]
    assert roles == {0, 1}
    for side in (0, 1):
        env = registry.make(name, side=side)
        assert {env.reset(options={"task": task})[1]["role"] for task in range(4)} == {side}


@pytest.mark.parametrize("name", GAMES)
def test_a_move_may_stand_as_prose_or_markdown_has_it(name):
    for form in ("{}.", "**{}**"):
        plain, marked = make(name), make(name)
        for env in (plain, marked):
            env.reset(seed=0, options={"task": 0})
        move = plain.solver()
        assert marked.step(form.format(move)) == plain.step(move)


@pytest.mark.parametrize("name", GAMES)
def test_whoever_makes_too_many_illegal_moves_loses(name):
    env = make(name)
    _, info = env.reset(seed=0, options={"task": 0})
    role = info["role"]
    for _ in range(PATIENCE - 1):
        observation, reward, over, _, info = env.step("pass the salt")
        assert (reward, over, info["role"], info["valid_action"]) == (0, False, role, False)
        assert info["available_actions"][0] in observation
    _, reward, over, _, info = env.step("pass the salt")
    assert over
    assert info["successes"][role] is False
    assert info["success"] is False
    assert reward == (0 if name.startswith("negotiation") else info["rewards"][role])
    if not name.startswith("negotiation"):
        assert info["rewards"][role] == registry.get_spec(name).reward_range[0]  # nothing worse could have come


def test_arguments_that_make_no_sense_are_refused():
    for name, words in (
        ("tic-tac-toe:opponent=minmax", "opponent is random, minimax, expert or self"),
        ("kuhn-poker:side=2", "side is 0, 1 or alternate"),
        ("kuhn-poker-self:side=1", "both roles are played"),
        ("kuhn-poker:hands=0", "hands is 1 to 50"),
        ("connect-four:rows=3", "columns and rows are 4 to 9"),
    ):
        with pytest.raises(ConfigError, match=words):
            registry.make(name)
    env = registry.make("kuhn-poker:opponent=self,hands=1")
    assert env.env_spec.splits == {"train": 12}
    assert "two_player" in env.env_spec.capabilities
    with pytest.raises(BadRequest, match="call reset"):
        registry.make("kuhn-poker").step("pass")


# Tic-tac-toe


def test_openings_are_draws_and_reflections_share_a_split():
    splits = tictactoe.openings(None)
    classes = [{tictactoe.canonical(board) for board in boards} for boards in splits.values()]
    assert not any(one & other for one, other in itertools.combinations(classes, 2))
    assert {split: len(boards) for split, boards in splits.items()} == registry.get_spec("tic-tac-toe").splits
    assert all(tictactoe.value(board) == 0 for boards in splits.values() for board in boards)
    assert tictactoe.canonical("x........") == tictactoe.canonical("........x") != tictactoe.canonical("....x....")


def test_glance_wins_and_blocks():
    random = np.random.default_rng(0)
    assert {tictactoe.glance("xx.oo....", random) for _ in range(20)} == {"3"}
    assert {tictactoe.glance("xx..o....", random) for _ in range(20)} == {"3"}
    assert len({tictactoe.glance("x...o....", random) for _ in range(60)}) == 7


# Kuhn poker


def test_pay():
    cases = {("KJ", "pp"): 1, ("JK", "pp"): -1, ("KJ", "bb"): 2, ("JQ", "bb"): -2, ("JK", "bp"): 1, ("KJ", "pbp"): -1,
             ("KJ", "pbb"): 2, ("QK", "pbb"): -2}  # fmt: skip
    assert {case: kuhn.pay(*case) for case in cases} == cases


def test_a_role_sees_its_own_card_alone():
    env = registry.make("kuhn-poker-self")
    for task in range(30):
        observation, info = env.reset(options={"task": task})
        for action in ("pass", "bet", "bet"):
            deal = env.state.deals[0]
            assert f"card {deal[info['role']]}" in observation
            assert deal[1 - info["role"]] not in re.sub("player|bet|pass", "", observation)
            observation, *_, info = env.step(action)


def test_forfeiting_costs_every_hand_that_is_left():
    env = registry.make("kuhn-poker-self")
    env.reset(options={"task": 0})
    env.step("bet")
    env.step("pass")
    for _ in range(PATIENCE):
        step = env.step("fold")
    assert step[1] == -8
    assert env.scores == (-7, 7)


def equilibria():
    return [kuhn.equilibrium(bluff) for bluff in (0.0, 0.1, 0.25, 1 / 3)]


@pytest.mark.parametrize("policy", equilibria())
def test_kuhn_equilibria_are_unbeatable_and_have_their_value(policy):
    tree = kuhn_poker()
    assert value(tree, policy) == pytest.approx(-1 / 18)
    assert exploitability(tree, policy) == pytest.approx(0, abs=1e-12)
    assert [best_response(tree, policy, role) for role in (0, 1)] == pytest.approx([-1 / 18, 1 / 18])


def test_a_bluff_too_many_is_punished():
    assert exploitability(kuhn_poker(), {**kuhn.equilibrium(0.2), "J:": {"pass": 0.0, "bet": 1.0}}) > 0.05


def test_chance_in_kuhn_poker():
    """NashConv 11/12, as OpenSpiel has it: its exploitability is half of that."""
    tree = kuhn_poker()
    assert value(tree, uniform(tree)) == pytest.approx(1 / 8)
    assert exploitability(tree, uniform(tree)) == pytest.approx(11 / 24)


def brute_force(policy: dict[str, dict[str, float]], role: int) -> float:
    """The best of all 64 pure strategies of a role, by playing every deal out. Shares nothing with the tree walk."""
    own = ["J:", "Q:", "K:", "J:pb", "Q:pb", "K:pb"] if role == 0 else ["J:p", "Q:p", "K:p", "J:b", "Q:b", "K:b"]

    def play(deal: str, history: str, bets: dict[str, float]) -> float:
        if history in kuhn.ENDS:
            return kuhn.pay(deal, history) * (1 if role == 0 else -1)
        mover = len(history) % 2
        known = f"{deal[mover]}:{history}"
        bet = bets[known] if mover == role else policy[known]["bet"]
        return bet * play(deal, history + "b", bets) + (1 - bet) * play(deal, history + "p", bets)

    pure = [dict(zip(own, map(float, bits), strict=True)) for bits in itertools.product("01", repeat=6)]
    return max(np.mean([play(deal, "", bets) for deal in kuhn.DEALS]) for bets in pure)


def test_best_responses_are_the_best_of_all_pure_strategies():
    tree, random = kuhn_poker(), np.random.default_rng(0)
    names = sorted(views(tree))
    assert len(names) == 12
    for _ in range(8):
        policy = {name: {"pass": 1 - bet, "bet": bet} for name, bet in zip(names, random.random(12), strict=True)}
        for role in (0, 1):
            assert best_response(tree, policy, role) == pytest.approx(brute_force(policy, role))


def test_views_tell_a_roles_actions_and_observations():
    view = views(kuhn_poker())["Q:pb"]
    assert view.past == (("player 0 card Q so far nothing", "pass"),)
    assert view.observation == "player 0 card Q so far pass bet"
    assert (view.role, view.legal) == (0, ("pass", "bet"))


def test_perfect_tic_tac_toe_cannot_be_beaten():
    tree = tic_tac_toe()
    chance = uniform(tree)
    assert len(chance) == 4520  # positions in which somebody is to move
    perfect = {board: dict.fromkeys(_actions(board), 1 / len(_actions(board))) for board in chance}
    assert (value(tree, perfect), exploitability(tree, perfect)) == (0, 0)
    assert value(tree, chance) == pytest.approx(0.5849206 - 0.2880952, abs=1e-6)  # x wins 58.5 %, o 28.8 %
    assert best_response(tree, chance, 0) == pytest.approx(0.9947917, abs=1e-6)
    first = {**perfect, tictactoe.EMPTY: {"2": 1.0}}
    assert exploitability(tree, first) == 0  # every first move draws
    assert exploitability(tree, {**perfect, "x........": {"2": 1.0}, tictactoe.EMPTY: {"1": 1.0}}) == pytest.approx(0.5)


def _actions(board: str) -> list[str]:
    return [str(cell + 1) for cell in tictactoe.best_cells(board)]


# Connect Four


def position(drawing: str) -> Position:
    rows = [row.split() for row in drawing.strip().splitlines()]
    bits = {"x": 0, "o": 0, ".": 0}
    for height, row in enumerate(reversed(rows)):
        for column, mark in enumerate(row):
            bits[mark] |= 1 << column * (len(rows) + 1) + height
    stones = bits["x"] | bits["o"]
    mine = bits["x"] if stones.bit_count() % 2 == 0 else bits["o"]
    return Position(len(rows[0]), len(rows), mine, stones)


def naive_lines(state: Position, stones: int) -> bool:
    def has(column: int, row: int) -> bool:
        inside = 0 <= column < state.columns and 0 <= row < state.rows
        return inside and bool(stones >> (column * (state.rows + 1) + row) & 1)

    ways = ((1, 0), (0, 1), (1, 1), (1, -1))
    places = itertools.product(range(state.columns), range(state.rows))
    return any(all(has(c + i * dc, r + i * dr) for i in range(4)) for c, r in places for dc, dr in ways)


def test_lines_are_found_as_by_looking():
    random = np.random.default_rng(0)
    won = 0
    for _ in range(30):
        state = Position(*((7, 6) if random.random() < 0.5 else (5, 4)))
        while state.playable and not state.won():
            empty = [1 << c * (state.rows + 1) + r for c in range(state.columns) for r in range(state.rows)]
            completing = sum(b for b in empty if not state.stones & b and naive_lines(state, state.mine | b))
            assert state.completes(state.mine) == completing
            cells = [cell for column in range(state.columns) if (cell := state.cell(column))]
            state = state.put(cells[random.integers(len(cells))])
            assert state.won() == naive_lines(state, state.theirs)
        won += state.won()
    assert won > 15


def test_alpha_beta_finds_what_plain_search_finds():
    def plain(state: Position, depth: int) -> int:
        if state.won():
            return -WIN
        if not state.playable:
            return 0
        if depth == 0:
            return 0
        cells = [cell for column in range(state.columns) if (cell := state.cell(column))]
        best = max(-plain(state.put(cell), depth - 1) for cell in cells)
        return best - np.sign(best) if abs(best) > WIN // 2 else 0

    random, decided = np.random.default_rng(1), 0
    for _ in range(60):
        state = Position(4, 4)
        for _ in range(8):
            cells = [cell for column in range(4) if (cell := state.cell(column))]
            state = state.put(cells[random.integers(len(cells))])
            if state.won():
                break
        if not state.won() and state.playable:
            found, known = search(state, 16), plain(state, 16)
            assert (found if abs(found) > WIN // 2 else 0) == known
            decided += known != 0
    assert decided > 10


def test_the_solver_makes_two_threats_at_once():
    state = position(
        """
        . . . . . . .
        . . . . . . .
        . . . . . . .
        . . . . . . .
        . . o o . . .
        . . x x . . ."""
    )
    best = max(rated(state, 6), key=lambda one: one[0])
    assert best[0] > WIN // 2
    assert connectfour.action_of(state, best[1]) in ("2", "5")


# Negotiation


def test_tasks_are_fair_and_the_fairest_deal_is_one_for_both():
    rules = negotiation.NegotiationRules()
    for task in range(40):
        table = rules.start("train", task, None)
        assert [negotiation.points(table, role, table.counts) for role in (0, 1)] == [40, 40]
        first, second = (negotiation.fairest(table, role) for role in (0, 1))
        assert negotiation.rest(table.counts, first) == second
        for role in (0, 1):
            mine = negotiation.demand(table, role)
            assert negotiation.points(table, 1 - role, negotiation.rest(table.counts, mine)) >= negotiation.LEAST
            assert negotiation.points(table, role, mine) >= negotiation.LEAST


def test_the_best_deal_cannot_be_known_from_ones_own_side():
    for task in range(12):
        role = task % 2
        counts, worth = tables.draw_table("train", task, role)
        opponents = tables._opponents(counts, worth[role])
        assert worth[1 - role] in itertools.chain(*opponents)
        assert len(opponents) >= tables.DEALS
        state = negotiation.NegotiationState(counts, worth)
        best = negotiation.demand(state, role)
        assert negotiation.points(state, 1 - role, negotiation.rest(counts, best)) == negotiation.LEAST
        gained = negotiation.points(state, role, best)
        last = dataclasses.replace(state, moves=8 + (1 - role))
        for seed in range(5):
            kept = tuple(map(int, negotiation.tough(last, np.random.default_rng(seed)).split()[1:]))
            assert negotiation.points(state, role, negotiation.rest(counts, kept)) <= gained - tables.GAP


def test_a_deal_is_paid_by_the_points_that_it_lacks():
    env = registry.make("negotiation", side=0)
    env.reset(options={"task": 2})
    best = negotiation.demand(env.state, 0)
    most = negotiation.points(env.state, 0, best)
    for share in tables.shares(env.state.counts):
        state = dataclasses.replace(env.state, deal=share)
        lacks = max(0, most - negotiation.points(state, 0, share))
        assert env.rules.scores(state)[0] == negotiation.POINT**lacks
        assert env.rules.success(state, 0) == (lacks == 0)
    assert not env.rules.success(env.state, 0)


def test_both_roles_are_paid_by_points():
    env = registry.make("negotiation-self")
    env.reset(options={"task": 3})
    table = env.state
    keep = negotiation.demand(table, 0)
    _, reward, over, _, info = env.step(negotiation.share_text(keep))
    assert (reward, over, info["role"]) == (0, False, 1)
    assert info["available_actions"][0] == "accept"
    _, reward, over, _, info = env.step("accept")
    other = negotiation.rest(table.counts, keep)
    assert info["rewards"] == [negotiation.points(table, 0, keep) / 40, negotiation.points(table, 1, other) / 40]
    assert (reward, over) == (info["rewards"][1], True)


@pytest.mark.parametrize("opponent", ["expert", "random"])
def test_the_opponent_gives_in_and_never_below_half(opponent):
    env = registry.make("negotiation", opponent=opponent)
    for task in range(0, 40, 2):
        env.reset(seed=task, options={"task": task})
        over = False
        while not over:
            offer = env.state.offer
            assert not offer or negotiation.points(env.state, 1, offer) >= negotiation.LEAST
            *_, over, _, _ = env.step(negotiation.share_text(env.state.counts))  # all for oneself
        assert env.scores == (0, 0)


def test_an_episode_is_json():
    for name in GAMES:
        json.dumps(finish(make(name)), allow_nan=False)
