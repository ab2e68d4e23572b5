"""Evaluations for other programs: attempts as CSV or JSON, trajectories as OpenAI's chat messages."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from agentgym.env import Display, Observation
from agentgym.errors import CheckpointError
from agentgym.evaluation.cost import Price
from agentgym.evaluation.run_folder import AttemptRecord, key_of, read_attempts, read_description, read_specs
from agentgym.protocol import decode_observation
from agentgym.rollouts.openai_policy import as_openai_tool
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.prompt_format import History, Message, PromptFormat
from agentgym.rollouts.trajectory import Trajectory, Turn, json_line, read_jsonl
from agentgym.spec import EnvSpec


@dataclass(frozen=True)
class AttemptTranscript:
    """An attempt with its trajectory and the environment that it was played in."""

    row: AttemptRecord
    trajectory: Trajectory
    spec: EnvSpec
    prompt_format: PromptFormat

    @property
    def name(self) -> str:
        """Name of the attempt, fit for a file: keydoor-test-task0-seed0-attempt0."""
        row = self.row
        env = "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in row.env)
        return f"{env}-{row.split}-task{row.task}-seed{row.seed}-attempt{row.attempt}"


def write_csv(folder: Path, out: Path) -> int:
    """Write a line for each attempt, failed ones included. Return their number."""
    records = attempt_records(folder)
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*(field.name for field in fields(AttemptRecord)), "cost"])
        writer.writeheader()
        writer.writerows(records)
    return len(records)


def write_attempts_json(folder: Path, out: Path) -> int:
    """Write run.json's content and a record for each attempt. Return the number of attempts."""
    records = attempt_records(folder)
    text = json.dumps({**read_description(folder), "attempts": records}, indent=2, ensure_ascii=False)
    out.write_text(text + "\n", encoding="utf-8")
    return len(records)


def write_openai(folder: Path, out: Path) -> int:
    """Write a line for each attempt: {"messages", "tools", "metadata"}. Return their number.

    The messages are the whole conversation, whatever window of it the model saw. Where one policy played both roles of
    an environment, each role has a line of its own.
    """
    count = 0
    with out.open("w", encoding="utf-8") as file:
        for transcript in read_transcripts(folder):
            tools = [as_openai_tool(tool) for tool in transcript.prompt_format.tools(transcript.spec)]
            metadata = {**asdict(transcript.row), "final_observation": transcript.trajectory.final_observation}
            for role in sorted({turn.role for turn in transcript.trajectory.turns}):
                record: dict[str, Any] = {"messages": chat_messages(transcript, role)}
                record |= {"tools": tools} if tools else {}
                file.write(json_line({**record, "metadata": {**metadata, "role": role}}))
            count += 1
    return count


def chat_messages(transcript: AttemptTranscript, role: int) -> list[Message]:
    """The conversation of one role up to its last reply."""
    turns = transcript.trajectory.turns
    history: History = [
        (display_before(turn, before), turn.message or turn.reply)
        for before, turn in zip([None, *turns[:-1]], turns, strict=True)
        if turn.role == role
    ]
    every = transcript.prompt_format.model_copy(update={"window": None})
    last = history[-1][1]
    prompt = every.messages(transcript.spec, history[:-1], history[-1][0])
    return [*prompt, {"role": "assistant", "content": last} if isinstance(last, str) else last]


def display_before(turn: Turn, before: Turn | None) -> Display:
    """The observation before a turn, with its image where that was kept; `before` is the turn before it."""
    if before is None or not before.results or before.role != turn.role:
        return _observation(turn.observation, turn.image)
    *others, last = before.results
    return {"text": turn.observation, "results": [*others, _observation(last, turn.image)]}


def _observation(text: str, image: str) -> Observation:
    return decode_observation({"text": text, "image": image.partition(",")[2]}) if image else text


def attempt_records(folder: Path) -> list[dict[str, Any]]:
    """Every attempt of a folder and its cost in dollars, None where it is not known."""
    price = read_price(folder)
    return [{**asdict(row), "cost": cost_of(row, price)} for row in read_attempts(folder)]


def cost_of(row: AttemptRecord, price: Price | None) -> float | None:
    """Dollars for the tokens of an attempt."""
    return None if price is None or row.tokens is None else price.of(row.tokens)


def read_price(folder: Path) -> Price | None:
    """The price by which the summary of a folder was made, None where it had none."""
    try:
        price = json.loads((folder / "summary.json").read_text(encoding="utf-8")).get("price")
        return None if price is None else Price.model_validate(price)
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder}/summary.json is not a summary: delete it ({error})") from error


def read_transcripts(folder: Path) -> Iterator[AttemptTranscript]:
    """Attempts of a folder whose trajectories were kept and have a turn, in the order in which they ended.

    Raises CheckpointError for a folder without trajectories, or without the specs of its environments.
    """
    rows, about, specs = read_attempts(folder), read_description(folder), read_specs(folder)
    by_key = {key_of(row): row for row in rows}
    formats = prompt_formats(about)
    for key, trajectory in last_trajectories(folder).items():
        place = f"{key.env} {key.split}"
        if place not in specs:
            raise CheckpointError(
                f"{folder} is of an older form: it has no specs.json with the instructions of {place}. Asked for "
                "again, an evaluation writes it once it plays an attempt"
            )
        if key in by_key and trajectory.turns:
            yield AttemptTranscript(by_key[key], trajectory, specs[place], formats[place])


def prompt_formats(about: dict[str, Any]) -> dict[str, PromptFormat]:
    """The prompt format of each "ENV SPLIT" of a run's description."""
    base = about["prompt_format"]
    return {
        f"{env['name']} {env['split']}": PromptFormat.model_validate({**base, **env.get("prompt_format", {})})
        for env in about["suite"]["envs"]
    }


def last_trajectories(folder: Path) -> dict[EpisodeSpec, Trajectory]:
    """The last trajectory of each attempt, without one that a kill cut short.

    Raises CheckpointError where none were kept."""
    path = folder / "trajectories.jsonl"
    if not path.exists():
        raise CheckpointError(f"{folder} holds no trajectories: it was evaluated with --no-trajectories")
    return {key_of(trajectory): trajectory for trajectory in read_jsonl(path, cut=True)}
