"""Exact values of the candidate actions in every state of a task, by dynamic programming."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentgym.evaluation.action_values import ActionValues
from agentgym.spec import EnvSpec
from agentgym_environments.benchmarks.toytext.solver import Table, epsilon_greedy, optimal_values, policy_values


def exact_values(
    spec: EnvSpec,
    table: Table,
    start: int,
    show: Callable[[int], tuple[str, str]],
    group: str,
    *,
    epsilon: float,
    discount: float,
) -> list[ActionValues]:
    """Return every state that actions lead to from `start`, final ones left out.

    The state is what the map shows, so there is no turn limit. `show`: state -> (its key, what the agent observes);
    `group` names the task.
    """
    policy = epsilon_greedy(optimal_values(table, discount), epsilon)
    q = policy_values(table, policy, discount)
    noise = f"; with probability {epsilon:g} any action" if epsilon else ""
    found = []
    for state in reachable(table, start):
        key, observation = show(state)
        fields: dict[str, Any] = {
            "env": spec.id,
            "task": spec.instructions.strip(),
            "reference": f"optimal at the discount, ties alike{noise}",
            "discount": discount,
            "state_key": key,
            "group": group,
            "state": observation,
            "actions": spec.actions,
            "q": q[state].tolist(),
            "probabilities": policy[state].tolist(),
        }
        found.append(ActionValues(**fields))
    return found


def reachable(table: Table, start: int) -> list[int]:
    """States that actions lead to from `start`, in order of their number; final ones left out."""
    found, edge = {start}, [start]
    while edge:
        outcomes = [outcome for branch in table[edge.pop()].values() for outcome in branch]
        new = {int(state) for probability, state, _, final in outcomes if probability > 0 and not final} - found
        found |= new
        edge += sorted(new)
    return sorted(found)
