"""Evaluations and their comparisons as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from agentgym.evaluation.stats import Interval
from agentgym.evaluation.suite import Suite
from agentgym.evaluation.summary import Comparison, Summary, SummaryRow

NOTED = "* too few tasks for an interval"


def star_note(intervals: Iterable[Interval | None]) -> str:
    """Meaning of the star that some of these intervals have; empty where none has one."""
    return NOTED if any(one is not None and one.note for one in intervals) else ""


def summary_table(summary: Summary, metrics: Sequence[str], title: str = "", notes: Sequence[str] = ()) -> Table:
    """The summary for a terminal of some 100 columns. Rates and success in percent, success with its 95% interval."""
    table = _table(title, "; ".join((*_notes(summary), *notes)), ("tasks", "attempts", *metrics, "failed"))
    for line in (*summary.envs, summary.overall):
        if line is summary.overall:
            table.add_section()
        cells = [line.cell(metric) for metric in metrics]
        failed = str(sum(line.failed.values()))
        table.add_row(escape(line.env), escape(line.split), str(line.tasks), str(line.attempts), *cells, failed)
    return table


def suites_table(rows: Sequence[tuple[Suite, SummaryRow]]) -> Table:
    """Several suites for a terminal: what was measured, and the best that others published of the same."""
    caption = star_note(line.success for _, line in rows)
    table = Table(caption=caption or None, box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("suite", no_wrap=True)
    for name in ("tasks", "attempts", "success", "score", "published", "failed"):
        table.add_column(name, justify="right", no_wrap=True)
    for suite, line in rows:
        best = max((one.score for one in suite.published), default=None)
        published, failed = "" if best is None else f"{best:g} %", str(sum(line.failed.values()))
        cells = (line.cell("success"), line.cell("score"), published, failed)
        table.add_row(escape(suite.name), str(line.tasks), str(line.attempts), *cells)
    return table


def _table(title: str, caption: str, numbers: Sequence[str]) -> Table:
    table = Table(title=escape(title), caption=escape(caption), box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for name in ("env", "split"):
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _notes(summary: Summary) -> list[str]:
    note = star_note(line.success for line in (*summary.envs, summary.overall))
    failed = summary.overall.failed
    retry = [f"failed: {summary.overall.failures}: not scored; run again to retry them"] if failed else []
    return [*retry, *filter(None, [note]), *_spent(summary.overall)]


def _spent(line: SummaryRow) -> list[str]:
    """Tokens and dollars of all attempts and seconds of one, where a model's tokens were counted."""
    if not line.prompt_tokens and not line.completion_tokens:
        return []
    notes = [f"tokens: {line.prompt_tokens:,} read, {line.completion_tokens:,} sampled"]
    notes += [] if line.seconds is None else [f"{line.seconds:.2g} s an attempt"]
    if line.cost is not None:
        notes.append(f"cost: ${line.cost:.4f}")
    return notes


def comparison_table(comparison: Comparison) -> Table:
    """A comparison for a terminal, with 95% intervals; in percent for success."""
    percent = comparison.metric == "success"
    note = star_note(line.difference for line in (*comparison.envs, comparison.overall))
    caption = "; ".join(filter(None, (f"a: {comparison.a}", f"b: {comparison.b}", *comparison.notes, note)))
    table = _table(f"{comparison.metric}, b - a", caption, ("paired", "dropped", "a", "b", "b - a"))
    for line in (*comparison.envs, comparison.overall):
        if line is comparison.overall:
            table.add_section()
        means = ["–" if x is None else f"{100 * x:.1f}" if percent else f"{x:.3f}" for x in (line.a, line.b)]
        gap = line.difference
        gap_text = "–" if gap is None else (gap.percent() if percent else str(gap)) + ("*" if gap.note else "")
        table.add_row(
            escape(line.env), escape(line.split), str(gap.n if gap else 0), str(line.dropped), *means, gap_text
        )
    return table
