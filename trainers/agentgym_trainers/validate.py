"""Checks that the parts of a configuration fit each other; what does not is refused at start, with the reason."""

from __future__ import annotations

from agentgym.errors import ConfigError
from agentgym_trainers.config.schedules import steps_to_validate
from agentgym_trainers.config.sections import Config
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.data.filters import needs_model_columns
from agentgym_trainers.data.sequences import trajectory_columns
from agentgym_trainers.engines import ENGINES
from agentgym_trainers.losses import OBJECTIVES
from agentgym_trainers.rollout.sources import SOURCES
from agentgym_trainers.signals import SIGNALS


def validate_config(config: Config) -> None:
    """Raise ConfigError, with what to change, where the parts do not fit each other at some step."""
    try:
        _validate_step(config)
        for step in steps_to_validate(config.schedules.values(), config.run.steps):
            _validate_step(config.at(step))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _validate_step(config: Config) -> None:
    """Raises ValueError with what to change."""
    for who, needs in config.needs.items():
        for need in sorted(needs):
            _check_provided(who, need, config)
    _check_critic(config)
    _check_terms(config)
    _check_potential(config)
    _check_resampled(config)
    source, engine = SOURCES[config.source.kind], ENGINES[config.engine.kind]
    if config.rollout.groups % source.players:
        raise ValueError(
            f"source.kind = {config.source.kind!r} makes a group for each role of a task: rollout.groups must be even, "
            f"not {config.rollout.groups}"
        )
    if config.rollout.temperature > engine.max_temperature:
        raise ValueError(
            f"engine.kind = {config.engine.kind!r} samples at temperatures up to {engine.max_temperature:g}, and "
            f'rollout.temperature is {config.rollout.temperature:g}: lower it, or set engine.kind = "inprocess"'
        )
    if config.optim.kind == "muon" and (config.model.lora is not None or (config.scale and config.scale.learners > 1)):
        raise ValueError(
            'optim.kind = "muon" moves whole matrices: with adapters (model.lora) or several learners (scale.learners) '
            'set optim.kind = "adamw"'
        )
    _check_lockstep(config)
    _check_asynchronous(config)
    check_scale(config)
    if config.model.path is None and config.rollout.max_length > config.model.shape.max_length:
        raise ValueError(
            f"rollout.max_length is {config.rollout.max_length}, and the tiny model reads no further than "
            f"{config.model.shape.max_length} tokens: raise model.tiny.max_length, or lower it"
        )
    if config.optim.minibatches > config.rollout.groups * config.rollout.group_size:
        raise ValueError("optim.minibatches is more than the step's episodes (rollout.groups x rollout.group_size)")
    if OBJECTIVES[config.loss.objective].needs_full_groups and config.optim.minibatches > config.rollout.groups:
        raise ValueError(
            f"loss.objective = {config.loss.objective!r} compares attempts at one task, so optimizer batches "
            "are cut "
            f"between groups: optim.minibatches must be at most rollout.groups, {config.rollout.groups}"
        )
    if config.correct is not None and OBJECTIVES[config.loss.objective].needs_full_groups:
        raise ValueError(
            f"[correct] weighs losses of tokens, and loss.objective = {config.loss.objective!r} has none: remove it"
        )
    if config.replay is not None and OBJECTIVES[config.replay.loss.objective].needs_full_groups:
        raise ValueError(
            f"replay.loss.objective = {config.replay.loss.objective!r} compares attempts at one task, and [replay] "
            "draws single ones: choose an objective of tokens, such as ppo_clip"
        )
    if config.select is not None and config.select.tries > 1 and needs_model_columns(config.select.kind):
        raise ValueError(
            f"select.kind = {config.select.kind!r} reads what models say of a step, so there is no asking for more: "
            "select.tries must be 1"
        )


def _check_critic(config: Config) -> None:
    """Raises ValueError where nothing reads the critic, nothing trains it, or it keeps what a filter drops."""
    if config.value is None:
        return
    if not config.all_needs & VALUES:
        raise ValueError(
            f"{', '.join(_assigners(config))} reads no values, so nothing would use [value]: remove it "
            "(value= removes it)"
        )
    if not any(ASSIGNERS[t.assigner].needs & VALUES for t in config.credit.parts.values()):
        readers = [who for who, needs in config.needs.items() if needs & VALUES]
        raise ValueError(
            f"{readers[0]} reads a critic's values, and the critic learns from the assigner: {_assigners(config)[0]} "
            'gives it no targets; set credit.assigner = "oreo", or another that reads values'
        )
    if (
        config.select is not None
        and needs_model_columns(config.select.kind)
        and OBJECTIVES[config.loss.objective].needs_full_groups
    ):
        raise ValueError(
            f"what select.kind = {config.select.kind!r} drops stays in the batch for the critic, and loss.objective = "
            f"{config.loss.objective!r} compares all attempts of the batch: remove [value], or choose another objective"
        )


def _assigners(config: Config) -> list[str]:
    return list(_assigners_needs(config))


def _assigners_needs(config: Config) -> dict[str, frozenset[str]]:
    terms = config.credit.parts.items()
    return {f"{name}.assigner = {term.assigner!r}": ASSIGNERS[term.assigner].needs for name, term in terms}


def _check_terms(config: Config) -> None:
    """Raises ValueError where terms of the credit disturb each other, or are measured by what they have seen."""
    training = [name for name, term in config.credit.parts.items() if ASSIGNERS[term.assigner].needs & VALUES]
    if len(training) > 1:
        raise ValueError(f"{' and '.join(training)} both set the critic's targets: only one term can read values")
    for name, term in config.credit.parts.items():
        needs = ASSIGNERS[term.assigner].needs
        early = [kind for kind, options in config.signals.items()
                 if SIGNALS[kind].provides & needs and getattr(options, "fit_first", False)]  # fmt: skip
        if term.gate and early:
            raise ValueError(
                f"{name}.gate measures a signal on episodes that it has not learned from, and "
                f"signals.{early[0]}.fit_first lets it learn from them first: set one of them to false"
            )
        gamma, measured = (getattr(options, "gamma", None) for options in (term, config.signals.get("branched_value")))
        if "mc_value_N" in needs and None not in (gamma, measured) and gamma != measured:
            raise ValueError(
                f"{name}.gamma is {gamma} and signals.branched_value.gamma {measured}: returns that are discounted "
                "differently have no difference; set them alike"
            )


def _check_potential(config: Config) -> None:
    """Raises ValueError where a potential is discounted like no term of the credit; some terms read no rewards."""
    if (potential := config.shaping.get("potential")) is None:
        return
    gamma, terms = potential["gamma"], config.credit.parts.items()
    if gamma not in (getattr(term, "gamma", 1.0) for _, term in terms):
        name, term = next(iter(terms))
        given = getattr(term, "gamma", None)
        other = f"{name} does not discount, as if by 1" if given is None else f"{name}.gamma {given}"
        raise ValueError(
            f"shaping.potential.gamma is {gamma} and {other}: a potential that is discounted differently changes which "
            "policy is best; set them alike"
        )


def _check_resampled(config: Config) -> None:
    """Raises ValueError for what reads more of the policy's batch than replies that nobody played have."""
    for name, options in config.signals.items():
        if not getattr(options, "resamples", False):
            continue
        known = SIGNALS[name].provides
        there = known | {"valid_N", "version_A", "ref_logprob_A", "prox_logprob_A"}
        loss = config.loss
        blind = [who for who, needs in _assigners_needs(config).items() if not needs & known or needs - there]
        blind += [f"[shaping.{shaper}]" for shaper in config.shaping]
        if OBJECTIVES[loss.objective].needs_with(loss.options) - there:
            blind.append(f"loss.objective = {loss.objective!r}")
        blind += [f"[{table}]" for table in ("value", "replay") if getattr(config, table) is not None]
        if blind:
            instead = f', or set signals.{name}.actor = "rollout"' if hasattr(options, "actor") else ""
            raise ValueError(
                f"with [signals.{name}] the policy learns from fresh replies at replayed states, which have no rewards "
                f"and no episodes, and {blind[0]} reads these: remove it{instead}"
            )


def _check_lockstep(config: Config) -> None:
    """Raises ValueError for what nobody can wait for."""
    if not config.rollout.lockstep:
        return
    reason = SOURCES[config.source.kind].not_in_lockstep(config.source)
    if reason:
        raise ValueError(f"rollout.lockstep waits for every open episode, and {reason}: it must be false")
    if not ENGINES[config.engine.kind].repeatable:
        raise ValueError(
            f"rollout.lockstep repeats a run to the bit, and engine.kind = {config.engine.kind!r} batches as requests "
            'come: set rollout.lockstep = false, or engine.kind = "inprocess"'
        )
    episodes = config.rollout.groups * config.rollout.group_size
    if config.rollout.concurrency < episodes:
        raise ValueError(
            "rollout.lockstep repeats a step exactly only when all its episodes run at once: rollout.concurrency "
            f"must be at least {episodes} (rollout.groups x rollout.group_size), not {config.rollout.concurrency}"
        )


def _check_asynchronous(config: Config) -> None:
    """Raises ValueError for what cannot go on while weights are learned."""
    rollout = config.rollout
    if not rollout.staleness:
        return
    by_policy = [f'"{name}"' for name, kind in SOURCES.items() if kind.by_policy]
    for wrong, why in (
        (
            not SOURCES[config.source.kind].by_policy,
            f"source.kind must be {' or '.join(by_policy)}, not {config.source.kind!r}",
        ),
        (rollout.lockstep, "rollout.lockstep, which waits for every episode, must be false"),
        (
            rollout.concurrency < rollout.group_size,
            f"rollout.concurrency must be at least {rollout.group_size}, a whole group",
        ),
    ):
        if wrong:
            raise ValueError(f"with rollout.staleness above 0, {why}")


VALUES = frozenset({"value_N", "value_A", "bootstrap_M"})
"""Columns of the critic."""
ALWAYS = frozenset({*trajectory_columns([]), "version_A", "ref_logprob_A", "prox_logprob_A"})
"""Columns that no table has to ask for: recorded, or computed because a part needs them."""
OF_THE_ENV = frozenset({"anchors", "snapshots"})
"""Needs that only the environment can meet: `env.check_environment`."""


def _check_provided(who: str, need: str, config: Config) -> None:
    """Raises ValueError with what to add where a part's need is not met."""
    sources = [name for name, kind in SOURCES.items() if need in kind.provides]
    if sources and need not in SOURCES[config.source.kind].provides:
        raise ValueError(f'{who} reads {need}, which not every source gives: set source.kind = "{sources[0]}"')
    if need in ALWAYS | OF_THE_ENV or sources:
        return
    if need in VALUES:
        if config.value is None:
            raise ValueError(f"{who} reads a critic's values: add a [value] table (value.lr=1e-3 adds one)")
    elif need == "groups":
        if config.rollout.group_size < 2:
            raise ValueError(
                f"{who} compares attempts at one task: rollout.group_size must be at least 2, not "
                f"{config.rollout.group_size}"
            )
    else:
        if not any(need in SIGNALS[name].provides for name in config.signals):
            givers = [name for name, kind in SIGNALS.items() if need in kind.provides]
            tables = " or ".join(f"[signals.{name}]" for name in givers) or "a signal of your own"
            raise ValueError(f"{who} reads {need}, which nothing provides: add {tables}")


def check_scale(config: Config) -> None:
    """Raises ValueError with what to change where a part cannot be spread over machines."""
    options, rollout = config.scale, config.rollout
    if options is None:
        return
    by_policy = [f'"{name}"' for name, kind in SOURCES.items() if kind.by_policy]
    kinds = {name: SIGNALS[name] for name in sorted(config.signals)}
    reading = [name for name, kind in kinds.items() if kind.reads_policy and kind.learned is None]
    elsewhere = [name for name, kind in kinds.items() if "snapshots" in kind.needs]
    source = SOURCES[config.source.kind]
    vllm = ENGINES[config.engine.kind].servers
    for wrong, why in (
        (
            not source.by_policy,
            f"source.kind must be {' or '.join(by_policy)}, not {config.source.kind!r}",
        ),
        (
            bool(reading),
            f"[signals.{''.join(reading[:1])}] reads the policy's weights, which the learners have: remove it, or say "
            "in its SignalKind what of it they can build (`learned`)",
        ),
        (
            source.serves_policy and bool(elsewhere),
            f"[signals.{''.join(elsewhere[:1])}] plays on from visited states, and with source.kind = "
            f"{config.source.kind!r} workers have no environment: remove it",
        ),
        (
            rollout.concurrency < options.workers,
            f"rollout.concurrency must be at least scale.workers, {options.workers}",
        ),
        (
            options.servers > 0 and not vllm,
            'scale.servers are vLLM\'s: set engine.kind = "vllm", or scale.servers = 0',
        ),
        (
            vllm and bool(options.servers) == bool(getattr(config.engine, "urls", ())),
            "vLLM's servers are either placed (scale.servers above 0) or named (engine.urls)",
        ),
    ):
        if wrong:
            raise ValueError(f"with [scale], {why}")
