"""What the ledger measures: environments, each with a budget of episodes and a target, and the methods that play them.

A regime is a question about credit assignment, put as an environment whose warm-up, lengths, budget and evaluation are
the same for all methods. What a method may choose for itself is one of the regime's six settings (episodes a step,
epochs, learning rate), tuned on seeds outside the race; nothing else is tuned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

BASELINE = "GRPO"


@dataclass(frozen=True)
class Setting:
    """What is tuned."""

    episodes: int
    """A step."""
    epochs: int
    lr: float

    @property
    def name(self) -> str:
        return f"{self.episodes}x{self.epochs}@{self.lr:g}"


@dataclass(frozen=True)
class Regime:
    """One environment, and how long it is played."""

    env: str
    question: str
    overrides: tuple[str, ...]
    budget: int
    """Episodes."""
    target: float
    """Of `measure`; the ledger counts the episodes until it is reached."""
    settings: tuple[Setting, ...]
    measure: Literal["success", "score"] = "success"
    split: str = "test"
    measured_on: str = ""
    """Environment of evaluations, if not that of the episodes that are learned from."""
    held_out: int = 128
    """Episodes of an evaluation."""
    evaluations: int = 12
    """After the one before the first step, evenly over the budget."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    methods: tuple[str, ...] = ()
    """Rows; all of `METHODS` if empty."""
    baseline: str = BASELINE
    """The row whose episodes are compared with those of the others."""
    enough: float | None = None
    """Of `measure`: a run that has it in two evaluations in a row is ended, and counts as level from there."""
    horizon: int | None = None
    """Turns, in regimes that differ in nothing else; their name less its number is what they share."""


@dataclass(frozen=True)
class Method:
    """A recipe, and what of it is counted in episodes."""

    recipe: str
    group_size: int = 8
    overrides: tuple[str, ...] = ()
    episodes: tuple[tuple[str, int], ...] = ()
    """(option that counts steps, episodes that these steps should have): a critic's warm-up is as long for small steps
    as for large ones."""
    settings: tuple[Setting, ...] = ()
    """Six of its own, where the regime's would ask nothing of it."""
    control: str = ""
    """The row that is the same without what this one adds: no head, or a process term that weighs nothing."""
    tuned_as: str = ""
    """The row at whose setting it plays, itself if empty."""
    envs: tuple[str, ...] = ()
    """First words of the environments that have what it reads; all if empty."""

    @property
    def as_shipped(self) -> bool:
        """Whether it is the recipe as it ships, but for sizes and rates."""
        return not any(text.startswith(("credit", "signals", "loss", "value", "optim.kind")) for text in self.overrides)


COMMON = (
    "name=ledger",
    "env.serve=false",
    "rollout.concurrency=128",
    "rollout.max_new_tokens=8",
    "optim.tokens_per_micro_batch=8192",
    "prompt_format.invalid_penalty=0.1",
    "sft.max_steps=300",
    "sft.demonstrations=1000",
    "eval.split=train",
    "eval.tasks=0",
    "run.steps=0",
    "run.threads=1",
    "run.trajectories_every=100000",
    "run.checkpoint_every=100000",
)
NOISY = ("sft.noise=0.9", "sft.check_every=5")
CHOICES = (
    "sft.noise=0.8",
    "sft.max_steps=300",
    "sft.check_every=1000",
    "optim.warmup=10",
    "loss.entropy=0.01",
    "loss.kl=0.05",
    "rollout.max_length=1024",
)
"""The warm-up's loss stands at ln 3 / 2, any color at any good, until step 150 or so (seed 2); then the good is read.

Without the bonus on entropy every method settled on colors for five or six of the eight goods, whichever it had seen
succeed. Where the rate does not rise first, Adam's first steps follow that bonus and undo what the model knew, within
two steps of training: GRPO on seed 101 and SPA-RL on seed 0 of `choices-feedback`, 16x3@0.001. Where nothing holds the
policy near the warm-up's, replies that are no actions become more frequent until none is one (GRPO, 4x2@0.001, two of
three tuning seeds; with 0.05 none)."""
LARGE = tuple(
    Setting(*s) for s in ((64, 1, 1e-3), (64, 4, 5e-4), (32, 1, 1e-3), (32, 3, 5e-4), (32, 4, 2.5e-4), (16, 1, 5e-4))
)
SMALL = tuple(
    Setting(*s) for s in ((64, 1, 1e-3), (64, 3, 5e-4), (16, 1, 1e-3), (16, 1, 5e-4), (16, 3, 5e-4), (16, 3, 2.5e-4))
)
TINY = tuple(
    Setting(*s) for s in ((32, 1, 1e-3), (32, 3, 1e-3), (16, 1, 1e-3), (16, 3, 1e-3), (4, 2, 1e-3), (4, 2, 5e-4))
)
TWIN = tuple(
    Setting(*s) for s in ((64, 1, 1e-3), (64, 1, 5e-4), (32, 1, 1e-3), (32, 1, 5e-4), (32, 2, 5e-4), (16, 1, 5e-4))
)
"""Of a critic that learns by 60 batches a step, whatever the step plays."""
SMALL_TWIN = tuple(
    Setting(*s) for s in ((16, 1, 1e-3), (16, 1, 5e-4), (16, 2, 5e-4), (8, 1, 1e-3), (8, 1, 5e-4), (8, 2, 5e-4))
)
REUSED = tuple(
    Setting(*s) for s in ((32, 3, 1e-3), (32, 3, 5e-4), (32, 6, 5e-4), (16, 3, 1e-3), (16, 6, 5e-4), (8, 3, 5e-4))
)
"""Where episodes are dear: what learns from returns learns from each several times."""

CLIPPED = ("loss.objective=ppo_clip", "loss.reducer=token_mean")
"""Without a ratio, mini-batches and epochs leave the policy gradient: 11 of 17 such runs on the oracle fell to 0."""
ONE_STEP = ("optim.minibatches=1",)
"""Of recipes that stay without a ratio."""
METHODS = {
    "GRPO": Method("grpo"),
    "RLOO": Method("rloo"),
    "REINFORCE": Method("reinforce", 1, ("credit.normalize=trajectory", *CLIPPED)),
    "GiGPO": Method("gigpo"),
    "HGPO": Method("hgpo"),
    "MT-GRPO": Method("grpo", 8, ("credit.assigner=mt_grpo",)),
    "reward-to-go LOO": Method("grpo", 8, ("credit.assigner=rtg_loo",)),
    "turn PPO": Method("ppo-turn", 1),
    "bi-level GAE": Method("bilevel-gae", 1),
    "SPA-RL": Method("spa-rl", 1, control="SPA-RL's control"),
    "SPA-RL's control": Method("ppo-turn", 1, ("credit.gamma=1.0",), tuned_as="SPA-RL"),
    "PRIME": Method("prime", control="PRIME's control"),
    "PRIME's control": Method("prime", 8, ("credit.terms.process.weight=0",), tuned_as="PRIME"),
    "iStar": Method("istar", control="iStar's control"),
    "iStar's control": Method("istar", 8, ("credit.terms.process.weight=0",), tuned_as="iStar"),
    "GAGPO": Method("gagpo"),
    "RewardFlow": Method("rewardflow"),
    "direct advantage": Method("direct-advantage", 1),
    "PACS": Method("pacs"),
    "CARL": Method("carl"),
    "HCAPO": Method("hcapo"),
    "BEACON": Method("beacon", envs=("keydoor",)),
    "IGPO": Method("igpo"),
    "SPAE": Method("spae"),
    "state score": Method("state-score", envs=("keydoor", "choices-feedback")),
    "ArCHer": Method("archer", 8, ("optim.minibatches=6",), (("signals.twin.warmup", 16),), TWIN),
}
IMITATION = tuple(
    Setting(*s) for s in ((64, 1, 1e-3), (64, 2, 1e-3), (64, 4, 5e-4), (32, 1, 1e-3), (32, 2, 1e-3), (32, 4, 5e-4))
)
"""Of methods that imitate the best of what was played, or learn from a recorded set."""
BRANCHED = tuple(
    Setting(*s) for s in ((8, 1, 1e-3), (8, 3, 1e-3), (8, 3, 5e-4), (16, 1, 1e-3), (16, 3, 1e-3), (16, 3, 5e-4))
)
"""Of steps whose every turn is played on nine times."""
RECIPES = {
    "DAPO": Method("dapo"),
    "Dr. GRPO": Method("dr-grpo"),
    "GSPO": Method("gspo"),
    "EPO": Method("epo"),
    "SPEAR": Method("spear"),
    "LOOP": Method("loop"),
    "token PPO": Method("ppo-token", 1),
    "DigiRL": Method("digirl", 8, (), (), IMITATION),
    "filtered BC": Method("filtered-bc", 8, (), (), IMITATION),
    "REFUEL": Method("refuel", 2),
    "Step-DPO": Method("step-dpo", 2),
    "A-LoL": Method("a-lol", 8, (), (), IMITATION),
    "OREO": Method("oreo", 8, (), (), IMITATION),
    "ETO": Method("eto", 4, (), (), IMITATION),
    "VinePPO": Method("vineppo", 4, (), (), BRANCHED),
    "DigiQ": Method("digiq", 8, ONE_STEP, (("signals.digiq.warmup", 256),), TWIN),
    "REINFORCE, as it ships": Method("reinforce", 1, ONE_STEP),
    "ArCHer, as published": Method("archer-as-published", 8, ONE_STEP, (), TWIN),
    "PRIME, as published": Method("prime-as-published", 4),
    "iStar, as published": Method("istar-as-published"),
    "SPA-RL, as published": Method("spa-rl-as-published", 1),
    "SPIRAL": Method("spiral", 1, control="SPIRAL's control"),
    "SPIRAL's control": Method("spiral", 1, ("signals.role=", "credit.assigner=reinforce"), tuned_as="SPIRAL"),
}
"""Rows of one regime, for what `agentgym recipes list` says of recipes whose question is not credit's."""
NOISE = ("signals.prm=", "signals.noise:noise.scale=1.0")
"""benchmarks/noise.py for PRIME's reward model: what a signal costs that knows nothing."""
TRUTH = ("signals.prm=", "signals.process:truth.scale=1.0")
"""benchmarks/process.py for a reward model: the true worth of every token, and what a signal adds that knows all."""
SHORT = ("credit.gamma=1.0", "credit.lam=0.3")
"""A lambda of .95 carries a reward at the end back over twelve turns by itself."""
VARIANTS = {
    "PRIME, truth": Method("prime", 8, TRUTH, control="PRIME's control", tuned_as="PRIME"),
    "iStar, truth": Method("istar", 8, TRUTH, control="iStar's control", tuned_as="iStar"),
    "turn PPO, gamma .5": Method("ppo-turn", 1, ("credit.gamma=0.5", "credit.lam=0.8")),
    "reward-to-go LOO, standardized": Method("grpo", 8, ("credit.assigner=rtg_loo", "credit.normalize=turn")),
    "REINFORCE, to go": Method("reinforce", 1, ("credit.reward_to_go=true", "credit.normalize=turn", *CLIPPED)),
    "HGPO, gamma 0": Method("hgpo", 8, ("credit.gamma=0", "credit.normalize=turn")),
    "GRPO, Muon": Method("grpo", 8, ("optim.kind=muon",)),
    "turn PPO, HL-Gauss": Method("ppo-turn", 1, ("value.head=hl_gauss",), control="turn PPO", tuned_as="turn PPO"),
    "true progress": Method(
        "ppo-turn",
        1,
        ("credit.gamma=1.0", "shaping.potential.weight=1.0"),
        control="SPA-RL's control",
        tuned_as="SPA-RL",
    ),
    "SPA-RL, lambda .3": Method("spa-rl", 1, SHORT, control="SPA-RL's control, lambda .3", tuned_as="SPA-RL"),
    "SPA-RL's control, lambda .3": Method("ppo-turn", 1, SHORT, tuned_as="SPA-RL"),
    "true progress, lambda .3": Method(
        "ppo-turn",
        1,
        (*SHORT, "shaping.potential.weight=1.0"),
        control="SPA-RL's control, lambda .3",
        tuned_as="SPA-RL",
    ),
    "ArCHer, one attempt": replace(  # also more steps of the critic, and fewer episodes before the policy learns
        METHODS["ArCHer"],
        group_size=1,
        overrides=("optim.minibatches=6", "signals.twin.updates=120"),
        episodes=(("signals.twin.warmup", 8),),
        settings=SMALL_TWIN,
    ),
    **{
        f"noise{weight}, {gate}": Method("prime", 8, (*NOISE, *more, *off), control="PRIME's control", tuned_as="PRIME")
        for weight, *more in (("",), (" of weight 1", "credit.terms.process.weight=1"))
        for gate, *off in (("gated",), ("no gate", "credit.terms.process.gate=false"))
    },
}
WARMED = {
    "turn PPO, warmed up": replace(METHODS["turn PPO"], episodes=(("value.warmup", 64),), control="turn PPO"),
    "ArCHer, warmed up": replace(METHODS["ArCHer"], episodes=(("signals.twin.warmup", 128),), control="ArCHer"),
}
"""As recipes with a critic were until 2026-11-27: the critic learns alone at first, from episodes that count."""
DECISIONS = (
    "GRPO",
    "RLOO",
    "REINFORCE",
    "MT-GRPO",
    "reward-to-go LOO, standardized",
    "turn PPO",
    "turn PPO, gamma .5",
    "HGPO, gamma 0",
)
"""Rows where every turn is rewarded. What is not standardized is of the size of one turn's reward, 1/T: the entropy
bonus outweighs it, and at T = 24 both such rows fell to 0."""


def choices(length: int) -> Regime:
    """Regime (a) of one length. The solver knows one place in five, and is right at a third of the others.

    A step of the warm-up has as many turns at every length.
    """
    return Regime(
        f"choices:length={length}",
        "many decisive turns that the environment tells apart",
        (*CHOICES, f"sft.batch={192 // length}"),
        480,
        0.7,
        TINY,
        measure="score",
        held_out=min(48, 576 // length),  # a score is a mean over its turns
        evaluations=15,
        seeds=tuple(range(8)),
        methods=DECISIONS if length < 24 else tuple(m for m in DECISIONS if m not in ("RLOO", "REINFORCE")),
        enough=0.9,
        horizon=length,
    )


def meadow(corridor: int, question: str) -> Regime:
    """Key and door with distractors, `corridor` turns of a path between the two.

    768 tokens are too few for the 24 turns that a policy that loses its way may take. On the short path that ended a
    third of the runs; the rows of the long one were raced in 768, which ended none of them.
    """
    room = ("rollout.max_length=768",) if corridor == 10 else ("rollout.max_length=1536", "model.tiny.max_length=1536")
    return Regime(
        "keydoor-meadow" if corridor == 10 else f"keydoor-meadow:corridor={corridor}",
        question,
        (*NOISY, *room, "sft.stop_at_success=0.2"),
        768,
        0.6,
        SMALL,
        held_out=96,
        evaluations=8,
    )


def one_choice(length: int) -> Regime:
    """Regime (b) of one length, where the places that do not matter look like the one that does."""
    return Regime(
        f"choices-one:length={length}",
        "one decisive turn among others that look like it",
        CHOICES if length < 24 else (*CHOICES, "rollout.max_length=2048", "model.tiny.max_length=2048"),
        768,
        0.8,
        SMALL,
        evaluations=12,
        seeds=tuple(range(8)),
        methods=("GRPO", "HGPO", "turn PPO"),
        enough=0.95,
        horizon=length,
    )


REGIMES = {
    "oracle": Regime(
        "oracle",
        "three decisions whose values are known",
        (*NOISY, "rollout.max_length=512", "sft.stop_at_success=0.15"),
        2048,
        0.7,
        LARGE,
        split="train",
        seeds=tuple(range(10)),
        methods=(
            *METHODS,
            "turn PPO, warmed up",
            "ArCHer, warmed up",
            "turn PPO, HL-Gauss",
            "GRPO, Muon",
            *(name for name in VARIANTS if name.startswith("noise")),
            *RECIPES,
        ),
    ),
    "keydoor-meadow": meadow(10, "one decisive turn among twelve"),
    **{f"choices-{length}": choices(length) for length in (12, 24, 6, 48)},
    "choices-bonus": Regime(
        "choices-bonus",
        "one attempt a task, tasks of unequal worth",
        CHOICES,
        640,
        0.7,
        TINY,
        measure="score",
        held_out=48,
        evaluations=16,
        seeds=tuple(range(8)),
        methods=(
            "REINFORCE",
            "REINFORCE, to go",
            "turn PPO",
            "turn PPO, gamma .5",
            "bi-level GAE",
            "turn PPO, warmed up",
        ),
        baseline="REINFORCE",
        enough=0.9,
    ),
    "twenty-questions": Regime(
        "twenty-questions-tiny",
        "episodes that are dear: how few of them are needed, whatever they cost to learn from",
        ("sft.noise=0.3", "sft.max_steps=300", "sft.check_every=1000", "rollout.max_length=512", "loss.entropy=0.005"),
        1536,
        0.4,  # .7 until the first rows had been played: none got there
        LARGE,
        split="train",
        methods=("token PPO", "turn PPO", "GRPO", "ArCHer"),
        baseline="token PPO",
        enough=0.95,
    ),
    "twenty-questions-read": Regime(
        "twenty-questions-tiny:fitting_only=true",
        "episodes that are dear, and a policy that reads the answers and guesses too early",
        (
            "sft.noise=0.5",  # of what is still possible; after 300 steps nobody reads the answers
            "sft.max_steps=3000",
            "sft.demonstrations=6000",
            "sft.check_every=4000",
            "rollout.max_length=512",
            "loss.entropy=0.005",
        ),
        256,
        0.65,
        REUSED,
        split="train",
        evaluations=16,
        methods=("token PPO", "turn PPO", "GRPO", "ArCHer, one attempt"),
        baseline="token PPO",
        enough=0.95,
    ),
    "guess-city": Regime(
        "guess-city-mini",
        "episodes that are dear, after a longer warm-up on noisier demonstrations",
        (
            "sft.noise=0.6",
            "sft.max_steps=1000",
            "sft.check_every=1100",
            "model.tiny.vocab_size=1024",
            "model.tiny.max_length=512",
            "rollout.max_length=512",
            "rollout.max_new_tokens=16",
            'prompt_format.system=""',
            "loss.entropy=0.005",
        ),
        384,
        0.7,
        LARGE,
        split="train",
        held_out=240,
        methods=("token PPO", "turn PPO", "GRPO", "ArCHer"),
        baseline="token PPO",
        enough=0.95,
    ),
    "choices-feedback": Regime(
        "choices-feedback",
        "evidence on the way, and reward at the end",
        CHOICES,
        640,
        0.7,
        TINY,
        measure="score",
        held_out=48,
        evaluations=16,
        methods=(
            "GRPO",
            "turn PPO",
            *(
                f"{name}{how}"
                for how in ("", ", lambda .3")
                for name in ("SPA-RL", "SPA-RL's control", "true progress")
            ),
            "turn PPO, warmed up",
            "state score",
        ),
        enough=0.9,
    ),
    "choices-together": Regime(
        "choices-together",
        "a policy that knows something before, and responses of several decisions",
        ("sft.noise=0.3", "sft.max_steps=200", "sft.check_every=1000", "loss.entropy=0.01", "rollout.max_length=512"),
        1024,
        0.7,
        LARGE,
        held_out=192,
        evaluations=16,
        methods=("GRPO", "PRIME", "PRIME's control", "PRIME, truth", "iStar", "iStar's control", "iStar, truth"),
        enough=0.95,
    ),
    **{f"choices-one-{length}": one_choice(length) for length in (6, 24)},
    "keydoor-meadow-6": meadow(4, "one decisive turn among six"),
    "tic-tac-toe-self": Regime(
        "tic-tac-toe-self",
        "both sides of a game, learned from playing oneself",
        ("sft.noise=0.6", "sft.max_steps=150", "sft.check_every=1000", "rollout.max_length=512"),
        4096,
        0.7,
        LARGE,
        measured_on="tic-tac-toe",
        held_out=136,
        methods=("SPIRAL's control", "SPIRAL"),
        baseline="SPIRAL's control",
    ),
    "sokoban-4x4": Regime(
        "sokoban-4x4",
        "moves that cannot be undone",
        # in 640 tokens ten replies that are no actions do not fit, which ended four of thirty tuning runs
        ("sft.noise=0.3", "sft.check_every=10", "sft.stop_at_success=0.15", "rollout.max_length=1024"),
        2048,
        0.5,
        SMALL,
    ),
}

CPU_1 = ("oracle", "keydoor-meadow", "keydoor-meadow-6", "sokoban-4x4")
"""AgentGym-CPU-1, the table of one environment after another."""


def method_of(name: str) -> Method:
    return (METHODS | VARIANTS | WARMED | RECIPES)[name]


def methods_of(regime: Regime) -> tuple[str, ...]:
    """Rows of the regime, but for those that read what its environment does not have."""
    return tuple(name for name in regime.methods or METHODS if regime.env.startswith(method_of(name).envs or ""))


def settings_of(method: str, regime: Regime) -> tuple[Setting, ...]:
    """The six of which one is chosen."""
    return method_of(method).settings or regime.settings


def overrides_of(method: Method, regime: Regime, setting: Setting) -> list[str]:
    """The recipe's overrides in this regime with this setting."""
    size = min(method.group_size, setting.episodes)
    return [
        *COMMON,
        f"env.name={regime.env}",
        *regime.overrides,
        f"rollout.groups={max(1, setting.episodes // size)}",
        f"rollout.group_size={size}",
        f"optim.epochs={setting.epochs}",
        f"optim.lr={setting.lr}",
        *annealed(setting, regime),
        f"optim.minibatches={2 if setting.episodes >= 32 else 1}",
        *(f"{option}={-(-count // setting.episodes)}" for option, count in method.episodes),
        *method.overrides,
    ]


def annealed(setting: Setting, regime: Regime) -> list[str]:
    """Schedule of the learning rate, which falls to a tenth over the budget.

    At a constant one, one run in five to ten fell to 0 late, whatever its method: of a policy that nearly always
    succeeds there are batches with one failure, and a step on such a batch is as large as any.
    """
    start, end, steps = setting.lr, setting.lr / 10, -(-regime.budget // setting.episodes)
    return [f'schedules."optim.lr"={{kind="linear",start={start!r},end={end!r},steps={steps}}}']
