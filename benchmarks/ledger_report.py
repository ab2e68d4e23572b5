"""What the ledger's results say: figures, tables, plots, docs/ledger.md, and what `agentgym recipes list` shows.

python benchmarks/ledger_report.py        # writes all of it anew from benchmarks/results/ledger/*.json
"""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from regimes import BASELINE, CPU_1, METHODS, RECIPES, REGIMES, WARMED, method_of

from agentgym.evaluation.stats import first_reaching, iqm_rows, probability_of_improvement, stratified_bootstrap

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "ledger"
PAGE = ROOT / "docs" / "ledger.md"
PLOTS = ROOT / "docs" / "ledger"
EVIDENCE = ROOT / "trainers" / "agentgym_trainers" / "evidence.json"
BEGIN, END = "<!-- from the results: python benchmarks/ledger_report.py -->\n", "<!-- end -->\n"
DRAWS = 2000
APART = " †"
COMPARED = (("ratio", 2), ("control", 1))
Result = dict[str, Any]
"""A finished job: seed, curve [[episodes, measure], ...], seconds."""
Estimate = tuple[float, float, float]
"""(estimate, low, high): 95 % bootstrap interval over seeds."""
COLORS = (
    "#777777", "#b58900", "#cc5533", "#2266bb", "#117755", "#8844aa", "#c03070", "#445500", "#00a0a0",
    "#66ccaa", "#5599dd", "#99bb33", "#dd8899", "#333388", "#bbbbbb", "#000000",
)  # fmt: skip


def until(target: float, result: Result, budget: int) -> tuple[float, bool]:
    """(episodes until the curve, linear between evaluations, first meets the target, whether it does)."""
    return first_reaching(result["curve"], target, budget)


def area(result: Result) -> float:
    """Mean of the measure over the episodes that were played."""
    episodes, measured = np.array(result["curve"]).T
    return float(np.trapezoid(measured, episodes) / max(episodes[-1], 1))


def figures(regime: str, raced: dict[str, list[Result]]) -> dict[str, dict[str, Any]]:
    """Of every method: `final`, `gain` (over the warm-up), `mean` (over the budget), `episodes` and `seconds` of
    processor time until the target, `ratio` (the baseline's episodes over its own; None where no run of the two
    reaches the target) and `control` (its mean over the budget less that of its control), each an Estimate or None;
    `censored`, the runs that do not reach the target; and `unpaired`, those of `ratio` and `control` whose two rows
    began with other warm-ups. Measures in per cent."""
    place, found = REGIMES[regime], {}
    reached = {m: [until(place.target, r, place.budget) for r in results] for m, results in raced.items()}
    baseline = raced.get(place.baseline, [])
    of_baseline = np.array([episodes for episodes, _ in reached.get(place.baseline, [])])
    for m, results in raced.items():
        first, last = (np.array([100 * r["curve"][i][1] for r in results]) for i in (0, -1))
        mean = np.array([100 * area(r) for r in results])
        episodes = np.array([count for count, _ in reached[m]])
        played = np.array([r.get("played", r["curve"][-1][0]) for r in results])
        seconds = np.array([r["seconds"] for r in results]) * np.minimum(1.0, episodes / np.maximum(played, 1))
        control = raced.get(method_of(m).control)
        compared = m != place.baseline and [r["seed"] for r in baseline] == [r["seed"] for r in results]
        unpaired = {
            part
            for part, other in (("ratio", compared and baseline), ("control", control))
            if other and not same_start(results, other)
        }
        ratio = difference = None
        if compared and any(met for _, met in reached[place.baseline] + reached[m]):
            ratio = bootstrap_pairs(ratio_of_iqms, of_baseline, episodes, "ratio" in unpaired)
        if control:
            of_control = np.array([100 * area(r) for r in control])
            difference = bootstrap_pairs(difference_of_means, mean, of_control, "control" in unpaired)
        found[m] = {
            "final": bootstrap(iqm_rows, last),
            "gain": bootstrap(mean_rows, last - first),
            "mean": bootstrap(iqm_rows, mean),
            "episodes": bootstrap(iqm_rows, episodes),
            "seconds": bootstrap(iqm_rows, seconds),
            "ratio": ratio,
            "control": difference,
            "unpaired": unpaired,
            "censored": sum(not met for _, met in reached[m]),
        }
    return found


def mean_rows(rows: np.ndarray) -> Any:
    """The mean of each row of an array [rows, seeds]."""
    return rows.mean(axis=-1)


def bootstrap(statistic: Callable[[np.ndarray], Any], values: np.ndarray) -> Estimate:
    """The statistic of each row with the percentile interval of `DRAWS` resamples of the seeds."""
    rng = np.random.default_rng(0)
    draws = statistic(rng.choice(values, (DRAWS, len(values))))
    low, high = np.percentile(draws, (2.5, 97.5))
    return float(statistic(values)), float(low), float(high)


def bootstrap_pairs(
    statistic: Callable[[np.ndarray, np.ndarray], Any], left: np.ndarray, right: np.ndarray, apart: bool
) -> Estimate:
    """The statistic of two rows. Seeds are resampled with both of their runs where these began with the same warm-up,
    which decides more of what a run needs than the method does; each row by itself where they are `apart`."""
    rng = np.random.default_rng(0)
    places = rng.integers(0, len(left), (DRAWS, len(left)))
    others = rng.integers(0, len(right), (DRAWS, len(right))) if apart else places
    low, high = np.percentile(statistic(left[places], right[others]), (2.5, 97.5))
    return float(statistic(left, right)), float(low), float(high)


def ratio_of_iqms(left: np.ndarray, right: np.ndarray) -> Any:
    return iqm_rows(left) / iqm_rows(right)


def difference_of_means(left: np.ndarray, right: np.ndarray) -> Any:
    return mean_rows(left) - mean_rows(right)


def same_start(left: list[Result], right: list[Result]) -> bool:
    """True where the runs of every seed began with the same measure: a warm-up made anew elsewhere may differ."""
    return [(r["seed"], r["curve"][0][1]) for r in left] == [(r["seed"], r["curve"][0][1]) for r in right]


def resampled(samples: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """`DRAWS` resamples of each sample, each by itself: arrays [draws, its size]."""
    sizes = [len(sample) for sample in samples]
    places = rng.integers(0, np.repeat(sizes, sizes), (DRAWS, sum(sizes)))
    columns = np.split(places, np.cumsum(sizes)[:-1], axis=1)
    return [sample[column] for sample, column in zip(samples, columns, strict=True)]


def growth(raced: dict[int, dict[str, list[Result]]], regimes: dict[int, str]) -> dict[str, Estimate]:
    """Of every method that was raced at two horizons or more: the exponent of episodes to the target in the horizon.

    raced and regimes: by horizon. The slope of a least-squares line through log(interquartile mean of episodes) over
    log(horizon); runs are resampled within each horizon. 0: episodes do not grow with the horizon. Censored runs count
    as their budget, so that where there are some the exponent is of the budgets as well.
    """
    rng, found = np.random.default_rng(0), {}
    for m in dict.fromkeys(m for of_horizon in raced.values() for m in of_horizon):
        horizons = [h for h, of_horizon in raced.items() if m in of_horizon]
        if len(horizons) < 2:
            continue
        place = {h: REGIMES[regimes[h]] for h in horizons}
        episodes = [np.array([until(place[h].target, r, place[h].budget)[0] for r in raced[h][m]]) for h in horizons]

        def slope(of_horizons: list[np.ndarray], horizons: list[int] = horizons) -> Any:
            return np.polyfit(np.log(horizons), np.log([iqm_rows(x) for x in of_horizons]), 1)[0]

        low, high = np.percentile(slope(resampled(episodes, rng)), (2.5, 97.5))
        found[m] = (float(slope(episodes)), float(low), float(high))
    return found


# --- tables -------------------------------------------------------------------------------------------------------


def interval(estimate: Estimate | None, digits: int = 0) -> str:
    """estimate [low, high]"""
    if estimate is None:
        return ""
    middle, low, high = estimate
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def rows(regime: str, found: dict[str, dict[str, Any]], settings: dict[str, str]) -> list[list[str]]:
    """The table of a regime, heading first."""
    place = REGIMES[regime]
    target = f"episodes to {100 * place.target:.0f} %"
    ratio = f"{place.baseline} / this"
    head = ["method", "setting", "at the end, %", "gain", "mean, %", target, "CPU s", ratio, "less control"]
    body = [
        [
            m, settings[m], *(interval(f[part]) for part in ("final", "gain", "mean", "episodes", "seconds")),
            *(interval(f[part], n) + APART * (part in f["unpaired"]) for part, n in COMPARED),
            str(f["censored"] or ""),
        ]
        for m, f in found.items()
    ]  # fmt: skip
    return [[*head, "censored"], *body]


def report(regime: str, raced: dict[str, list[Result]], settings: dict[str, str]) -> None:
    """Print the table of a regime."""
    place = REGIMES[regime]
    seeds = len(next(iter(raced.values())))
    print(f"\n{regime}: {place.question}; {seeds} seeds, {place.budget} episodes, {place.measure}")
    table = rows(regime, figures(regime, raced), settings)
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def plot(regime: str, raced: dict[str, list[Result]]) -> Path:
    """Mean over seeds of the measure over episodes, with a band without the best and the worst seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    place = REGIMES[regime]
    figure, axis = plt.subplots(figsize=(8, 4.4), layout="constrained")
    grid = np.linspace(0, place.budget, 65)
    shown = {m: results for m, results in raced.items() if m not in RECIPES or m in place.methods}
    curves = {
        m: 100 * np.array([np.interp(grid, *np.array(r["curve"]).T) for r in results]) for m, results in shown.items()
    }  # seeds × grid
    named = lines_of(curves, place.baseline)
    for method in curves.keys() - named:
        axis.plot(grid, curves[method].mean(axis=0), color="#d0d0d0", linewidth=1.0, zorder=1)
    for color, method in zip(cycle(COLORS), named):
        every = curves[method]
        style = ":" if method_of(method).tuned_as else "-"
        axis.plot(grid, every.mean(axis=0), style, color=color, linewidth=1.8, label=method)
        if len(every) > 2:
            low, high = np.sort(every, axis=0)[[1, -2]]
            axis.fill_between(grid, low, high, color=color, alpha=0.08, linewidth=0)
    if len(named) < len(curves):
        axis.plot([], [], color="#d0d0d0", linewidth=1.0, label=f"{len(curves) - len(named)} others")
    axis.axhline(100 * place.target, color="black", linewidth=0.8, linestyle=":")
    axis.set(xlabel="episodes", ylabel=f"held-out {place.measure}, %", ylim=(0, 102))
    axis.set_title(textwrap.fill(f"{regime}: {place.question}", 75), fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    PLOTS.mkdir(parents=True, exist_ok=True)
    figure.savefig(PLOTS / f"{regime}.png", dpi=110)
    plt.close(figure)
    return PLOTS / f"{regime}.png"


def lines_of(curves: dict[str, np.ndarray], baseline: str) -> list[str]:
    """The methods whose lines have a name: the baseline, and of the others as many as can be told apart, from both ends
    of their order by the mean over the budget."""
    others = sorted(curves.keys() - {baseline}, key=lambda m: -float(curves[m].mean()))
    if len(others) >= len(COLORS):
        others = others[: len(COLORS) - 4] + others[-3:]
    return [m for m in curves if m == baseline or m in others]


# --- from the kept results ----------------------------------------------------------------------------------------


def kept() -> dict[str, dict[str, Any]]:
    """The saved regimes, in the order of `REGIMES`."""
    return {name: json.loads(path.read_text()) for name in REGIMES if (path := RESULTS / f"{name}.json").is_file()}


def growth_tables(results: dict[str, dict[str, Any]]) -> str:
    """How episodes grow with the horizon, for each family of regimes that was raced at several."""
    families: dict[str, dict[int, str]] = {}
    for name in results:
        if (horizon := REGIMES[name].horizon) is not None:
            families.setdefault(name.rpartition("-")[0], {})[horizon] = name
    text = ""
    for family, regimes in families.items():
        found = growth({h: results[name]["raced"] for h, name in regimes.items()}, regimes)
        if found:
            text += (
                f"\n### {family}: growth with the horizon\n\nThe exponent of episodes to the target in the number of "
                f"turns, over {', '.join(str(h) for h in sorted(regimes))} turns: 0 where it does not matter.\n\n"
                "| method | exponent |\n|---|---|\n"
            ) + "".join(f"| {m} | {interval(estimate, 2)} |\n" for m, estimate in found.items())
    return text


def suite_table(results: dict[str, dict[str, Any]]) -> str:
    """AgentGym-CPU-1 as far as it was raced: each method that stands in all of its regimes, over all of them."""
    played = [name for name in CPU_1 if name in results]
    rows = [m for m in METHODS if all(m in results[name]["raced"] for name in played)] if len(played) > 1 else []
    if BASELINE not in rows:
        return ""
    count = min(len(results[name]["seeds"]) for name in played)
    means = {
        m: np.array([[100 * area(run) for run in results[name]["raced"][m][:count]] for name in played]).T for m in rows
    }
    rest = [name for name in CPU_1 if name not in played]
    text = (
        f"\n### AgentGym-CPU-1\n\nVersion 1: {', '.join(played)}, {count} seeds each"
        + (f"; not raced yet: {', '.join(rest)}" if rest else "")
        + ". The interquartile mean of what a run has over its budget, per cent, and the probability that a run of the "
        f"method is better than one of {BASELINE}, each regime alike.\n\n"
        f"| method | mean over the budget, % | better than {BASELINE} |\n|---|---|---|\n"
    )
    for m in rows:
        mean, better = stratified_bootstrap(means[m]), probability_of_improvement(means[m], means[BASELINE])
        chance = "" if m == BASELINE else f"{better.estimate:.2f} [{better.low:.2f}, {better.high:.2f}]"
        text += f"| {m} | {mean.estimate:.0f} [{mean.low:.0f}, {mean.high:.0f}] | {chance} |\n"
    return text


def choice_table(results: dict[str, dict[str, Any]]) -> str:
    """Which method for my environment: of every regime the rows that surely need fewer or more episodes than its
    baseline, the one furthest from it first. Rows that play at another's setting, to be compared with it, are not."""
    text = (
        "\n### Which method for my environment\n\nThe regime most like it says. A method stands here where the 95 % "
        "interval of the ratio of episodes excludes 1; between all others this budget of seeds cannot tell, and the "
        "cheapest to run will do.\n\n"
        "| environment | measured on | baseline | fewer episodes | more episodes |\n|---|---|---|---|---|\n"
    )
    for name, saved in results.items():
        place, found = REGIMES[name], figures(name, saved["raced"])
        ratios = {m: f["ratio"] for m, f in found.items() if f["ratio"] is not None and not method_of(m).tuned_as}
        fewer = sorted((m for m, (_, low, _) in ratios.items() if low > 1), key=lambda m: -ratios[m][0])
        more = sorted((m for m, (_, _, high) in ratios.items() if high < 1), key=lambda m: ratios[m][0])
        cells = [", ".join(f"{m} ({ratios[m][0]:.1f})" for m in some) or "none" for some in (fewer, more)]
        text += f"| {place.question} | `{name}` | {place.baseline} | {' | '.join(cells)} |\n"
    return text if results else ""


def tables(results: dict[str, dict[str, Any]]) -> str:
    """The generated part of docs/ledger.md."""
    text = choice_table(results)
    for name, saved in results.items():
        place = REGIMES[name]
        table = rows(name, figures(name, saved["raced"]), saved["settings"])
        lines = ["| " + " | ".join(row) + " |" for row in table]
        lines.insert(1, "|" + "---|" * len(table[0]))
        text += (
            f"\n### {name}\n\n{place.question[0].upper()}{place.question[1:]}. `{place.env}`, {place.measure}, "
            f"{len(saved['seeds'])} seeds, {place.budget} episodes; {origins(saved)}; "
            f"{hours(saved):.1f} hours of training on one core, tuning included.\n\n"
            + "\n".join(lines)
            + ended_early(saved)
            + f"\n\n![{name}](ledger/{name}.png)\n"
        )
    return text + growth_tables(results) + suite_table(results) + "\n"


def ended_early(saved: dict[str, Any]) -> str:
    """The runs that a guard ended, as a paragraph."""
    runs = [
        f"{m} on seed {run['seed']} after {run['played']}"
        for m, results in saved["raced"].items()
        for run in results
        if run.get("stopped", "enough") != "enough"
    ]
    return f"\n\nEnded by a guard, and level from there: {', '.join(runs)} episodes." if runs else ""


def origins(saved: dict[str, Any]) -> str:
    """Dates, machines and commits of a regime's rows, with the number of rows of each where there are several."""
    texts = Counter(
        f"{row['date']}, {row['machine']}, commit {row['commit'][:7]}" for row in saved["measured"].values()
    )
    return "; ".join(
        text if len(texts) == 1 else f"{count} row{'s' * (count > 1)}: {text}" for text, count in texts.items()
    )


def hours(saved: dict[str, Any]) -> float:
    """Processor time of a regime's runs, evaluations left out."""
    return sum(run["seconds"] for runs in (saved["tuning"], *saved["raced"].values()) for run in runs) / 3600


def evidence(results: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """recipe -> what was measured of its shipped form: regime, gain, baseline and the ratio to it, what it has more
    than its control (None without one), seeds, date."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, saved in results.items():
        for m, of_method in figures(name, saved["raced"]).items():
            method = method_of(m)
            if method.as_shipped and m not in WARMED:
                parts = ("gain", "ratio", "control")
                row = {part: of_method[part] and [round(x, 4) for x in of_method[part]] for part in parts}
                about = {
                    "regime": name,
                    "baseline": REGIMES[name].baseline,
                    "seeds": len(saved["seeds"]),
                    "date": saved["measured"][m]["date"],
                }
                found.setdefault(method.recipe, []).append(about | row)
    return found


def main() -> None:
    results = kept()
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + tables(results) + END + rest.partition(END)[2], encoding="utf-8")
    EVIDENCE.write_text(json.dumps(evidence(results), indent=1) + "\n", encoding="utf-8")
    for name, saved in results.items():
        print(plot(name, saved["raced"]))


if __name__ == "__main__":
    main()
