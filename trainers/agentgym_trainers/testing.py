"""Batches with known answers, for tests of credit and losses; and an engine that says what it is told.

T4, C3 and B6 are small enough for hand computation. OM, the oracle MDP, is small enough for all of its ten trajectories
to be listed, so the mean and the variance of any estimator are sums, and its exact policy gradient is known:

    s0: first action → sA, second → sB.         sC: first → win (reward 1), second → lose.
    sA: first → sC, second → sD.                sD: both → lose.
    sB: first → sC or sD, evenly; second → sD.

Three turns, one logit a state for the first action. Constants hold for the uniform policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from agentgym.rollouts.policy import ContextFull
from agentgym.rollouts.trajectory import ImageSpan
from agentgym_credit.batch import Batch, Credit
from agentgym_trainers.engines.base import Completion, Sampling

S0, SA, SB, SC, SD = range(5)
ORACLE_VALUE = np.array([0.1875, 0.25, 0.125, 0.5, 0.0])
ORACLE_ADVANTAGE = np.array([0.0625, 0.25, 0.125, 0.5, 0.0])
"""Advantage of the first action; the second has minus this."""
ORACLE_GRADIENT = np.array([0.03125, 0.0625, 0.03125, 0.09375, 0.0])
"""∂J/∂logit of each state."""

TINY = np.finfo(np.float64).tiny

INTEGER_COLUMNS = {"role_N", "milestone_N", "version_A", "task_M"}
"""Columns of `Batch.x` that are int64; all others are float64."""

VALUE_COLUMNS = (
    *("value_N", "value_A", "bootstrap_M", "q_N", "v_N", "mc_value_N", "mc_after_N", "inst_value_M", "baseline_M"),
    "role_baseline_N",
)
"""Columns of `Batch.x` in units of return: they scale with rewards."""

_NEXT = {
    (S0, 0): ((1.0, SA),),
    (S0, 1): ((1.0, SB),),
    (SA, 0): ((1.0, SC),),
    (SB, 0): ((0.5, SC), (0.5, SD)),
}


def toy_batch(
    rewards: Sequence[ArrayLike],
    *,
    groups: ArrayLike | None = None,
    anchors: ArrayLike | None = None,
    tokens: int | Sequence[int] | np.ndarray = 1,
    truncated: ArrayLike | None = None,
    **columns: ArrayLike,
) -> Batch:
    """`rewards`: for each trajectory one a turn. `tokens`: of every turn, or of each. `columns` go to x."""
    m, lengths = len(rewards), np.array([np.size(turns) for turns in rewards], dtype=np.int64)
    n = int(lengths.sum())
    turn_A = np.repeat(np.arange(n), tokens)
    return Batch(
        group_M=np.zeros(m, dtype=np.int64) if groups is None else np.array(groups, dtype=np.int64),
        traj_N=np.repeat(np.arange(m), lengths),
        reward_N=np.concatenate([np.zeros(0), *rewards]),
        turn_A=turn_A,
        truncated_M=np.zeros(m, dtype=bool) if truncated is None else np.array(truncated, dtype=bool),
        anchor_N=np.full(n, -1) if anchors is None else np.array(anchors, dtype=np.int64),
        logprob_A=np.full(len(turn_A), np.log(0.5), dtype=np.float32),
        x={name: np.array(column, dtype=_dtype(name)) for name, column in columns.items()},
    )


def _dtype(column: str) -> type:
    return np.int64 if column in INTEGER_COLUMNS else np.float64


def t4() -> Batch:
    """One group of four: s0 sA sB wins, s0 sA sC loses, s0 sB wins, s0 sA sC loses."""
    return toy_batch([[0, 0, 1], [0, 0, 0], [0, 1], [0, 0, 0]], anchors=[0, 1, 2, 0, 1, 3, 0, 2, 0, 1, 3])


def c3(rewards: Sequence[float] = (0, 0, 1), **options) -> Batch:
    """One trajectory of three turns of one token, V = (.2, .5, .6)."""
    return toy_batch([rewards], value_N=(0.2, 0.5, 0.6), value_A=(0.2, 0.5, 0.6), **options)


def b6(rewards: Sequence[float] = (0, 0, 1)) -> Batch:
    """C3 with two tokens a turn; V before the turns' last tokens is C3's."""
    return toy_batch([rewards], tokens=2, value_N=(0.1, 0.4, 0.5), value_A=(0.1, 0.2, 0.4, 0.5, 0.5, 0.6))


def random_batch(rng: np.random.Generator, *, group_size: int | None = None, length: int | None = None) -> Batch:
    """One to four groups of trajectories of `length` turns or of unequally many, some truncated, with every known
    column."""
    groups = np.repeat(np.arange(g := rng.integers(1, 5)), group_size or rng.integers(1, 5, size=g))
    lengths = np.full(len(groups), length) if length else rng.integers(1, 5, size=len(groups))
    tokens = rng.integers(1, 4, size=lengths.sum())
    return toy_batch(
        [rng.normal(size=length) for length in lengths],
        groups=groups,
        anchors=rng.integers(-1, 3, size=lengths.sum()),
        tokens=tokens,
        truncated=rng.random(len(groups)) < 0.3,
        **random_columns(rng, len(groups), lengths.sum(), tokens.sum()),
    )


def random_columns(rng: np.random.Generator, m: int, n: int, a: int) -> dict[str, np.ndarray]:
    """Every known column of a batch of m trajectories, n turns and a action tokens; progress_N has gaps."""
    normal = (*VALUE_COLUMNS, "progress_c_N", "prm_A")
    return {name: rng.normal(size={"M": m, "N": n, "A": a}[name[-1]]) for name in normal} | {
        "progress_N": np.where(rng.random(n) < 0.2, np.nan, rng.random(n)),
        "judge_N": rng.random(n),
        "answer_prob_N": np.where(rng.random(n) < 0.2, np.nan, rng.random(n)),
        "answer_conf_N": rng.random(n),
        "entropy_N": rng.random(n),
        "mc_se_N": rng.random(n),
        "valid_N": (rng.random(n) < 0.8).astype(np.float64),
        "penalty_N": np.where(rng.random(n) < 0.2, 0.25, 0.0),
        "branched_N": (rng.random(n) < 0.2).astype(np.float64),
        "success_M": (rng.random(m) < 0.5).astype(np.float64),
        "solver_M": (rng.random(m) < 0.2).astype(np.float64),
        "prox_logprob_A": -rng.random(a),
        "ref_logprob_A": -rng.random(a),
        "role_N": rng.integers(0, 2, size=n),
        "version_A": rng.integers(0, 3, size=a),
        "task_M": rng.integers(0, 5, size=m),
        "milestone_N": rng.integers(-1, 3, size=n),
        "reached_N": (rng.random(n) < 0.3).astype(np.float64),
        "hindsight_N": rng.normal(size=n),
        "progress_skill_M": rng.random(m),
    }


def reorder(batch: Batch, trajectories: Sequence[int] | np.ndarray) -> tuple[Batch, np.ndarray, np.ndarray]:
    """The batch of these trajectories in this order, and which turns and which action tokens of the old one it has."""
    old_M = np.asarray(trajectories, dtype=np.int64)
    old_N = np.concatenate([np.flatnonzero(batch.traj_N == traj) for traj in old_M])
    old_A = np.concatenate([np.flatnonzero(batch.turn_A == turn) for turn in old_N])
    at = {"M": old_M, "N": old_N, "A": old_A}
    return (
        Batch(
            group_M=np.unique(batch.group_M[old_M], return_inverse=True)[1],
            traj_N=np.repeat(np.arange(len(old_M)), np.bincount(batch.traj_N)[old_M]),
            reward_N=batch.reward_N[old_N],
            turn_A=np.repeat(np.arange(len(old_N)), np.bincount(batch.turn_A)[old_N]),
            truncated_M=batch.truncated_M[old_M],
            anchor_N=batch.anchor_N[old_N],
            logprob_A=batch.logprob_A[old_A],
            x={name: column[at[name[-1]]] for name, column in batch.x.items()},
        ),
        old_N,
        old_A,
    )


@dataclass(frozen=True)
class OracleTrajectory:
    probability: float
    states: tuple[int, ...]
    actions: tuple[int, ...]
    """0 the first action, 1 the second."""
    reward: float


def oracle_trajectories(p_first: np.ndarray | None = None) -> list[OracleTrajectory]:
    """All ten, with their probabilities where state s takes its first action with probability p_first[s], else ½."""
    p = np.full(5, 0.5) if p_first is None else p_first

    def walk(probability: float, states: tuple[int, ...], actions: tuple[int, ...]) -> Iterator[OracleTrajectory]:
        for action in (0, 1):
            taken, chance = (*actions, action), probability * (p[states[-1]] if action == 0 else 1 - p[states[-1]])
            if len(states) == 3:
                yield OracleTrajectory(chance, states, taken, float(states[-1] == SC and action == 0))
                continue
            for odds, after in _NEXT.get((states[-1], action), ((1.0, SD),)):
                yield from walk(chance * odds, (*states, after), taken)

    return list(walk(1.0, (S0,), ()))


def oracle_population(copies: int = 1) -> list[OracleTrajectory]:
    """Each trajectory 16 · probability · `copies` times: a group of these has the moments of an infinite group."""
    return [t for t in oracle_trajectories() for _ in range(round(16 * t.probability) * copies)]


def oracle_batch(
    trajectories: Sequence[OracleTrajectory],
    *,
    groups: ArrayLike | None = None,
    tokens: int = 1,
    value: np.ndarray = ORACLE_VALUE,
    value_after: np.ndarray | None = None,
) -> Batch:
    """Anchors are states, x["action_N"] the actions. The first token of a turn decides, others say nothing more.

    value_N is `value[state]`; so is value_A of first tokens, while later ones have `value_after[state, action]`, by
    default Q of the uniform policy. What other signals would say is derived from these two: the columns are exact if
    the values are. The milestones are sC and the win.
    """
    state_N = np.array([state for t in trajectories for state in t.states])
    action_N = np.array([action for t in trajectories for action in t.actions])
    if value_after is None:
        value_after = ORACLE_VALUE[:, None] + ORACLE_ADVANTAGE[:, None] * [1, -1]
    value_A = np.repeat(value_after[state_N, action_N], tokens)
    value_A[::tokens] = value[state_N]
    reward_M = np.array([t.reward for t in trajectories])
    batch = toy_batch([[0, 0, r] for r in reward_M], groups=groups, anchors=state_N, tokens=tokens)
    after_N = np.where(batch.last_N, 0.0, np.roll(value[state_N], -1))
    progress_N = batch.reward_N + after_N - value[state_N]
    start = np.full(len(state_N), value[S0])
    won_N, taken_N = reward_M[batch.traj_N] > 0, value_after[state_N, action_N]
    likely_N, before_N = (np.clip(np.where(won_N, p_N, 1 - p_N), TINY, 1) for p_N in (taken_N, value[state_N]))
    return batch.with_columns(
        action_N=action_N,
        value_N=value[state_N],
        value_A=value_A,
        success_M=reward_M,
        valid_N=np.ones(len(state_N)),
        penalty_N=np.zeros(len(state_N)),
        role_N=np.zeros(len(state_N), np.int64),
        q_N=taken_N,
        v_N=value[state_N],
        mc_value_N=value[state_N],
        mc_after_N=after_N,
        progress_c_N=progress_N,
        progress_skill_M=np.ones(len(reward_M)),
        prm_A=np.where(batch.first_A, progress_N[batch.turn_A], 0.0),
        inst_value_M=start[: len(reward_M)],
        baseline_M=start[: len(reward_M)],
        role_baseline_N=start,
        milestone_N=(state_N == SC).astype(np.int64),
        reached_N=(((np.roll(state_N, -1) == SC) & ~batch.last_N) | (batch.reward_N > 0)).astype(np.float64),
        hindsight_N=np.log(likely_N) - np.log(before_N),
        answer_prob_N=value[state_N],
        answer_conf_N=np.ones(len(state_N)),
        entropy_N=np.full(len(state_N), np.log(2)),
        prox_logprob_A=batch.logprob_A.astype(np.float64),
        ref_logprob_A=batch.logprob_A.astype(np.float64),
    )


def oracle_groups(size: int) -> tuple[Batch, np.ndarray]:
    """All 10^size groups that can be drawn, and the probability of each, shared by its trajectories: float64[M]."""
    every = oracle_trajectories()
    drawn = np.array(list(product(range(10), repeat=size)))
    chance = np.array([t.probability for t in every])[drawn].prod(axis=1)
    groups = np.repeat(np.arange(len(drawn)), size)
    return oracle_batch([every[i] for i in drawn.ravel()], groups=groups), np.repeat(chance / size, size)


def oracle_gradient_M(batch: Batch, credit: Credit, p_first: np.ndarray | None = None) -> np.ndarray:
    """float64[M, 5]: each trajectory's Σ_t A_t ∂ log π(a_t | s_t) / ∂logit."""
    p = np.full(5, 0.5) if p_first is None else p_first
    score_N = np.where(batch.x["action_N"] == 0, 1 - p[batch.anchor_N], -p[batch.anchor_N])
    gradient_M = np.zeros((len(batch.group_M), 5))
    np.add.at(gradient_M, (batch.traj_N, batch.anchor_N), credit.advantage_A[batch.first_A] * score_N)
    return gradient_M


ScriptedResponse = Sequence[int] | Exception
Script = Sequence[ScriptedResponse] | Callable[[int, Sequence[int]], ScriptedResponse]


class ScriptedEngine:
    """An engine that answers with given tokens and remembers each call as (conversation, prompt, completion).

    `script` has the replies of every conversation, call by call, or is a function of (call, prompt); a reply that is
    an exception is raised. No two log-probabilities are equal, and every call has a version of its own.
    """

    def __init__(self, script: Script, max_length: int = 1 << 20) -> None:
        self.script, self.max_length, self.version = script, max_length, 0
        self.calls: list[tuple[int, Sequence[int], Completion]] = []
        """The prompts as they were given, not copied: one that is changed later is found out."""
        self.opened = self.closed = self.tokens = 0

    def open(self, rng: np.random.Generator) -> ScriptedConversation:
        self.opened += 1
        return ScriptedConversation(self, self.opened - 1)

    async def refresh(self, weights: Mapping[str, Tensor], version: int) -> None:
        self.version = version

    async def aclose(self) -> None: ...


class ScriptedConversation:
    """One conversation of a ScriptedEngine."""

    def __init__(self, engine: ScriptedEngine, index: int) -> None:
        self._engine, self._index, self._calls = engine, index, 0

    async def generate(self, prompt: Sequence[int], sampling: Sampling, images: Sequence[ImageSpan] = ()) -> Completion:
        engine, call = self._engine, self._calls
        if len(prompt) >= engine.max_length:
            raise ContextFull(f"the prompt has {len(prompt)} tokens; the engine takes {engine.max_length}")
        response = engine.script(call, prompt) if callable(engine.script) else engine.script[call]
        if isinstance(response, Exception):
            raise response
        self._calls += 1
        logprobs = [-(engine.tokens + i + 1) / 1024 for i in range(len(response))]
        finish = "stop" if response and response[-1] in sampling.stop_ids else "length"
        completion = Completion(list(response), logprobs, finish, [engine.version] * len(response))
        engine.tokens, engine.version = engine.tokens + len(response), engine.version + 1
        engine.calls.append((self._index, prompt, completion))
        return completion

    def close(self) -> None:
        self._engine.closed += 1
