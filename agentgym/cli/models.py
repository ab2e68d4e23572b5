"""`agentgym infer serve` and `agentgym push`: a trained model, for others."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import click

from agentgym.cli.terminal import note_if_open
from agentgym.errors import UsageError


@click.group()
def infer() -> None:
    """A checkpoint as a server."""


@infer.command(short_help="Serve a checkpoint behind OpenAI's API.")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A name of this server; may be repeated.")
@click.option("--name", help="What requests call the model.  [default: the folder's name]")
@click.option(
    "--max-sequences", type=click.IntRange(min=1), default=64, show_default=True, help="Replies computed at once."
)
@click.option(
    "--max-length",
    type=click.IntRange(min=2),
    help="Tokens of prompt and reply.  [default: the run's, or the model's, at most 8192]",
)
@click.option(
    "--api-key", envvar="AGENTGYM_API_KEY", show_envvar=True, help="What clients must send.  [default: nothing]"
)
@click.option(
    "--record",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Append finished episodes to FOLDER/episodes.jsonl, for source.path.",
)
@click.option("--strict", is_flag=True, help="Refuse an episode's call that does not go on from an earlier one.")
@click.option(
    "--lease", type=click.FloatRange(min=1), default=900, show_default=True, help="Seconds that an idle episode lives."
)
def serve(
    checkpoint: Path,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    name: str | None,
    max_sequences: int,
    max_length: int | None,
    api_key: str | None,
    record: Path | None,
    strict: bool,
    lease: float,
) -> None:
    """Serve a CHECKPOINT's folder at http://HOST:PORT/v1 until interrupted, to any OpenAI client.

    Temperature and reply length of requests that name none are the run's, when the checkpoint lies in one. An agent
    whose base URL is http://HOST:PORT/episodes/ID/v1 is recorded: its calls are the turns of the episode ID.
    """
    from agentgym.cli.policy import require_checkpoint
    from agentgym_servers.inference.app import run_inference_server
    from agentgym_trainers.load import load_served
    from agentgym_trainers.rollout.external.recorder import Recorder

    require_checkpoint(checkpoint)
    model = load_served(checkpoint, name=name, max_sequences=max_sequences, max_length=max_length)
    recorder = Recorder(model.template, folder=record, strict=strict, lease_s=lease)
    if api_key is None:
        note_if_open(host, port)
    with contextlib.suppress(KeyboardInterrupt):  # that is how one stops it
        run_inference_server(model, host, port, api_key=api_key, recorder=recorder, hosts=hosts)


@click.command(short_help="Publish a run's model on the Hugging Face hub.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("repository", metavar="OWNER/NAME", required=False)
@click.option("--to", "folder", type=click.Path(path_type=Path, file_okay=False), help="Write it to a folder instead.")
@click.option("--step", type=click.IntRange(min=0), help="Step of the checkpoint.  [default: the newest]")
@click.option("--public", is_flag=True, help="A repository that is new is for all to see.")
def push(run: Path, repository: str | None, folder: Path | None, step: int | None, public: bool) -> None:
    """Publish the model of a RUN's folder with a card: the training, its evaluation, and the whole configuration."""
    from agentgym_trainers.publishing.hub import upload_model
    from agentgym_trainers.publishing.model_card import write_model

    if (repository is None) == (folder is None):
        raise UsageError("name a repository, as in `agentgym push runs/mine OWNER/NAME`, or a folder, by --to")
    if folder is not None:
        click.echo(f"the model and its card, README.md, are in {write_model(run, folder, step)}")
        return
    assert repository is not None
    with tempfile.TemporaryDirectory() as place:
        url = upload_model(write_model(run, Path(place) / "model", step), repository, private=not public)
    click.echo(f"published: {url}")
