"""A run's configuration: every part and its options. Unknown keys are refused, and so are parts that do not fit."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from agentgym.rollouts.prompt_format import PromptFormat
from agentgym_trainers.config.option_errors import checked_model, checked_options
from agentgym_trainers.config.registry import KindOptions, Registry
from agentgym_trainers.config.schedules import ScheduleOptions, applied
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.data.filters import SELECTORS
from agentgym_trainers.data.replay_buffer import BufferOptions
from agentgym_trainers.data.reward_shaping import SHAPERS
from agentgym_trainers.distributed.options import RayOptions
from agentgym_trainers.engines import ENGINES
from agentgym_trainers.engines.options import InProcess
from agentgym_trainers.learner.critic import ValueOptions
from agentgym_trainers.losses import OBJECTIVES
from agentgym_trainers.losses.entropy_band import EntropyBandOptions
from agentgym_trainers.losses.importance import CorrectOptions
from agentgym_trainers.losses.reduce import Reducer
from agentgym_trainers.monitoring.guards import GuardOptions
from agentgym_trainers.monitoring.tracking.options import TrackingOptions
from agentgym_trainers.nn.device import DeviceName
from agentgym_trainers.nn.lora import LoraOptions
from agentgym_trainers.nn.precision import Dtype
from agentgym_trainers.nn.tiny import TinyModel
from agentgym_trainers.rollout.sources import SOURCES
from agentgym_trainers.rollout.sources.online import OnlineOptions
from agentgym_trainers.signals import SIGNALS


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunOptions(Section):
    """Length and bookkeeping of the run."""

    seed: int = Field(default=0, ge=0)
    """Seed of the tiny model, the order of tasks, the environments' chance and what is sampled."""
    steps: int = Field(default=100, ge=0)
    """RL iterations: collect, credit, update."""
    checkpoint_every: int = Field(default=25, gt=0)
    """Steps between two checkpoints."""
    keep_checkpoints: int = Field(default=2, gt=0)
    """Older ones are deleted; the last of the run always stays."""
    trajectories_every: int = Field(default=10, gt=0)
    """Steps between those whose trajectories are kept for the report."""
    threads: int | None = Field(default=None, gt=0)
    """Torch's threads; None leaves them alone. 1 is fastest for tiny models beside a busy server."""


class ModelOptions(Section):
    """The policy's model: its source, adapters, device and precision."""

    path: str | None = None
    """A Hugging Face checkpoint (a folder or a hub id); None makes the tiny model from the run's seed."""
    tiny: TinyModel | None = None
    """Shape of the tiny model; None is the default one. Unused with `path`."""
    template: dict[str, Any] = {}
    """Variables of the model's chat template, as `enable_thinking` is one of Qwen3's; in evaluations, too."""
    device: DeviceName = "auto"
    """Device on which a process trains and samples: "auto" (its GPU if it has one, else the CPU), "cpu", "cuda" or
    "cuda:N"."""
    dtype: Dtype = "float32"
    """Precision in which policy, critic and reference compute. Their weights, and what the optimizer keeps, are
    float32; of a policy with adapters only those."""
    lora: LoraOptions | None = None
    """Train adapters of low rank; None trains all weights."""
    gradient_checkpointing: bool = False
    """Compute layers again in the backward pass instead of keeping what they computed: less memory, a slower step."""

    @property
    def shape(self) -> TinyModel:
        """Shape of the model that is made where no `path` is given."""
        return self.tiny or TinyModel()


class EnvOptions(Section):
    """The environment that is trained on."""

    name: str
    """An id, "package.module:Class", or the URL of a running server."""
    split: str = "train"
    """Split that is trained on."""
    serve: bool = True
    """Start a server for the environment and speak HTTP to it; False runs the environment inside the trainer. A URL is
    used as it is."""
    max_turns: int | None = Field(default=None, gt=0)
    """Turns before an episode is cut; None leaves it to the environment."""
    episode_s: float = Field(default=600.0, gt=0)
    """Seconds for one episode; over it, the episode has failed and is not scored."""


class RolloutOptions(Section):
    """Collection of a step's episodes."""

    groups: int = Field(default=16, gt=0)
    """Tasks a step."""
    group_size: int = Field(default=8, gt=0)
    """Attempts at each."""
    temperature: float = Field(default=1.0, gt=0)
    """Temperature of sampling, and of the log-probabilities that the learner computes."""
    max_new_tokens: int = Field(default=64, gt=0)
    """Tokens of one response, at most."""
    max_length: int = Field(default=1024, gt=1)
    """Tokens of a whole episode; longer ones are cut."""
    concurrency: int = Field(default=128, gt=0)
    """Episodes at once."""
    staleness: int = Field(default=0, ge=0)
    """Updates that a token may be behind the weights that learn from it. 0 plays and learns in turns; above it episodes
    are played all the time, and the weights change under them."""
    lockstep: bool = False
    """Wait for every open episode before each forward: the run is then reproducible to the bit, and as slow as the
    slowest environment."""


class ComponentOptions(Section):
    """A part that is chosen by name. Further keys are the options of its own: its function's keyword parameters."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def _choose(self, name: str, parts: Registry[Any]) -> None:
        checked = checked_options(name, parts[name].function, self.model_extra or {}, list(type(self).model_fields))
        object.__setattr__(self, "__pydantic_extra__", checked)

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class CreditTerm(ComponentOptions):
    """One of several assigners whose credit is added up. Further keys are the assigner's own options."""

    assigner: str
    """A name of ours, or "package.module:function"."""
    normalize: Literal["none", "token", "turn", "trajectory"] = "none"
    """Center and scale the finished advantages over these rows of the batch."""
    weight: float = 1.0
    """Factor of its credit in the sum."""
    gate: bool = False
    """Multiply the weight by the skill of what the assigner reads: the share of the step's outcomes that the critic or
    signal explains before it learns from them. What knows nothing weighs nothing."""

    @model_validator(mode="after")
    def _options_fit(self) -> CreditTerm:
        self._choose(self.assigner, ASSIGNERS)
        if self.gate and ASSIGNERS[self.assigner].skill is None:
            able = ", ".join(sorted(name for name, part in ASSIGNERS.items() if part.skill is not None))
            raise ValueError(f"gate: there is no measure of what {self.assigner!r} reads; there is one for {able}")
        return self


class CreditOptions(ComponentOptions):
    """The credit assigner, or `terms`: several, added up. Further keys are the assigner's own options."""

    assigner: str | None = None
    """A name of ours, or "package.module:function"."""
    normalize: Literal["none", "token", "turn", "trajectory"] = "none"
    """Center and scale the finished advantages over these rows of the batch."""
    terms: dict[str, SerializeAsAny[CreditTerm]] = {}
    """A = Σ_k weight_k · normalize_k(assigner_k), by a name of each."""

    @model_validator(mode="after")
    def _options_fit(self) -> CreditOptions:
        if (self.assigner is None) == (not self.terms):
            raise ValueError("either assigner is set, or [credit.terms.NAME] tables with one each")
        if self.assigner is not None:
            self._choose(self.assigner, ASSIGNERS)
        elif self.normalize != "none" or self.model_extra:
            wrong = ", ".join(self.model_extra or ["normalize"])
            raise ValueError(f"with terms, options go to the terms: credit.terms.NAME.{wrong}")
        return self

    @property
    def parts(self) -> dict[str, CreditTerm]:
        """The terms by their dotted names in a recipe; one for the single assigner."""
        if self.assigner is None:
            return {f"credit.terms.{name}": term for name, term in self.terms.items()}
        return {"credit": CreditTerm(assigner=self.assigner, normalize=self.normalize, **self.options)}


class SelectOptions(ComponentOptions):
    """The selector of trajectories to learn from. Further keys are the selector's own options."""

    kind: str
    """A name of ours, or "package.module:function"."""
    tries: int = Field(default=1, gt=0)
    """Times that the source is asked, at most, until rollout.groups groups are left to learn from."""

    @model_validator(mode="after")
    def _options_fit(self) -> SelectOptions:
        self._choose(self.kind, SELECTORS)
        return self


class LossOptions(ComponentOptions):
    """The objective: the loss of each token, given its advantage. Further keys are the objective's own options."""

    objective: str = "ppo_clip"
    """A name of ours, or "package.module:function"."""
    reducer: Reducer = "token_mean"
    """Weight of each token's loss in the sum (losses/reduce.py)."""
    reducer_length: int | None = Field(default=None, gt=0)
    """The constant of the reducer "constant"."""
    entropy: float = Field(default=0.0, ge=0)
    """Coefficient of the entropy bonus."""
    kl: float = Field(default=0.0, ge=0)
    """Coefficient of KL(policy ‖ the policy as RL began)."""
    kl_estimator: Literal["k1", "k2", "k3", "k3+"] = "k3+"
    """"k3+" has the value of k3 and the gradient of the KL."""
    band: EntropyBandOptions | None = None
    """EPO's entropy bonus, turned round outside a band around past entropy."""

    @model_validator(mode="after")
    def _options_fit(self) -> LossOptions:
        self._choose(self.objective, OBJECTIVES)
        if (self.reducer == "constant") != (self.reducer_length is not None):
            raise ValueError('reducer = "constant" and reducer_length go together')
        return self


class ReplayOptions(BufferOptions):
    """Self-imitation: attempts that went well are learned from once more, in an update of their own."""

    loss: LossOptions = Field(default_factory=lambda: LossOptions(objective="ppo_clip"))
    """Objective of that update."""


class OptimOptions(Section):
    """The optimizer, and how a step's episodes become optimizer batches."""

    lr: float = Field(default=1e-5, gt=0)
    """Learning rate of the policy. A critic and signals have their own."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.99)
    """Decay rates of AdamW's two moments."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of AdamW."""
    kind: Literal["adamw", "muon"] = "adamw"
    """"muon": AdamW, but Muon for the matrices of the policy's layers. One momentum in place of two moments."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Largest norm of a gradient; a larger one is scaled down to it."""
    warmup: int = Field(default=0, ge=0)
    """Optimizer steps of the policy over which its rate rises to `lr`, evenly.

    Adam's first steps are as long as any, however small and noisy their gradient: a bonus on entropy alone, where the
    first episodes tell little, can undo what the model knew.
    """
    epochs: int = Field(default=1, gt=0)
    """Times that a step's episodes are learned from."""
    minibatches: int = Field(default=2, gt=0)
    """Optimizer batches an epoch, cut between trajectories."""
    tokens_per_micro_batch: int = Field(default=16384, gt=0)
    """Tokens of one forward and backward, at most; it bounds memory and does not change the gradient."""


class SFTOptions(Section):
    """Supervised warm-up on demonstrations: of the environment's scripted solver, or from a file."""

    path: str | None = None
    """JSON lines of trajectories, as an evaluation or a run writes them; those that succeeded are imitated.

    None plays the solver."""
    demonstrations: int = Field(default=1000, gt=0)
    """Episodes of the solver, or at most so many of the file."""
    noise: float = Field(default=0.0, ge=0, lt=1)
    """Probability that a demonstrated action is random: a solver made imperfect on purpose."""
    lr: float = Field(default=2e-3, gt=0)
    """Learning rate of the warm-up."""
    batch: int = Field(default=32, gt=0)
    """Demonstrations a step."""
    max_steps: int = Field(default=300, gt=0)
    """Steps of the warm-up, at most."""
    stop_at_success: float | None = Field(default=None, gt=0, le=1)
    """Stop once sampled success on the training split reaches this; checked every `check_every` steps."""
    check_every: int = Field(default=25, gt=0)
    """Steps between two checks."""


class EvalOptions(Section):
    """Held-out evaluation before and after RL."""

    split: str = "test"
    """Split of the held-out tasks."""
    tasks: int = Field(default=100, ge=0)
    """The first tasks of the split; 0 skips the evaluation."""
    attempts: int = Field(default=4, gt=0)
    """Attempts at each."""


class Config(Section):
    """Everything that decides a run."""

    name: str
    description: str = ""
    paper: str = ""
    run: RunOptions = RunOptions()
    model: ModelOptions = ModelOptions()
    env: EnvOptions
    prompt_format: PromptFormat = PromptFormat()
    rollout: RolloutOptions = RolloutOptions()
    engine: SerializeAsAny[KindOptions] = InProcess()
    source: SerializeAsAny[KindOptions] = OnlineOptions()
    select: SelectOptions | None = None
    signals: dict[str, SerializeAsAny[BaseModel]] = {}
    """Learned signals by kind, asked in this order."""
    shaping: dict[str, dict[str, Any]] = {}
    """Shapers of rewards, in this order, each with its options."""
    credit: CreditOptions
    value: ValueOptions | None = None
    """The critic; needed by assigners that read values."""
    correct: CorrectOptions | None = None
    """Weights for tokens that other weights, or another precision, sampled."""
    loss: LossOptions = Field(default_factory=LossOptions)
    replay: ReplayOptions | None = None
    optim: OptimOptions = OptimOptions()
    sft: SFTOptions | None = None
    eval: EvalOptions = EvalOptions()
    guards: GuardOptions = GuardOptions()
    tracking: TrackingOptions | None = None
    """Experiment trackers; None is TensorBoard alone."""
    scale: RayOptions | None = None
    """Several processes, on one machine or many; None is this one."""
    schedules: dict[str, ScheduleOptions] = {}
    """Options by their dotted names that change from step to step."""

    def at(self, step: int) -> Config:
        """This, with every scheduled option as it is in a step (counted from 0)."""
        if not self.schedules:
            return self
        tree = applied(self.model_dump(exclude={"schedules"}), self.schedules, step)
        return checked_model(type(self), tree).model_copy(update={"schedules": self.schedules})

    @field_validator("engine", "source", mode="before")
    @classmethod
    def _kind_fits(cls, given: Any, info: ValidationInfo) -> KindOptions:
        assert info.field_name is not None
        registry = {"engine": ENGINES, "source": SOURCES}[info.field_name]
        if isinstance(given, KindOptions):
            return given
        if "kind" not in given:
            raise ValueError("kind is missing")
        return checked_model(cast(type[KindOptions], registry[given["kind"]].options), given)

    @field_validator("shaping")
    @classmethod
    def _shapers_fit(cls, tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {name: checked_options(name, SHAPERS[name].function, given, []) for name, given in tables.items()}

    @field_validator("signals", mode="before")
    @classmethod
    def _signals_fit(cls, tables: dict[str, Any]) -> dict[str, BaseModel]:
        return {name: checked_model(SIGNALS[name].options, given) for name, given in tables.items()}

    @property
    def needs(self) -> dict[str, frozenset[str]]:
        """Requirements of each chosen part, by the recipe's name for it."""
        found = {
            f"{name}.assigner = {term.assigner!r}": ASSIGNERS[term.assigner].needs_with(term.options, gate=term.gate)
            for name, term in self.credit.parts.items()
        }
        loss = self.loss
        found[f"loss.objective = {loss.objective!r}"] = OBJECTIVES[loss.objective].needs_with(loss.options)
        if self.correct is not None:
            found["[correct]"] = frozenset({"prox_logprob_A", "version_A"})
        if self.select is not None:
            found[f"select.kind = {self.select.kind!r}"] = SELECTORS[self.select.kind].needs - {"past"}
        if self.replay is not None:
            loss = self.replay.loss
            found[f"replay.loss.objective = {loss.objective!r}"] = OBJECTIVES[loss.objective].needs_with(loss.options)
        found |= {f"[shaping.{name}]": SHAPERS[name].needs for name in self.shaping}
        return found | {f"[signals.{name}]": SIGNALS[name].needs for name in self.signals}

    @property
    def all_needs(self) -> frozenset[str]:
        return frozenset().union(*self.needs.values())
