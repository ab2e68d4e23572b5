"""The report: what it embeds, what it leaves out, and that the page works in a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentgym.errors import CheckpointError
from agentgym.rollouts.trajectory import Branch, Span, StopReason, Trajectory, Turn
from agentgym_trainers.monitoring.report import curves, trajectories
from agentgym_trainers.monitoring.report import page as report_page
from agentgym_trainers.monitoring.report.page import write_report

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "headless_shell")
OBSERVATIONS = [
    "You are in a 6x6 room.\n#######\n#..K..#\n#.@..D#\n#######\nYou hold nothing. <b>Doors</b> need keys.",
    "You move north.\n#######\n#.@K..#\n#....D#\n#######\nA sign: </script><script>alert('é')</script> <!-- 鍵 -->",
    "You hold a key 🔑.\n#######\n#..@..#\n#....D#\n#######",
    "The door is two steps east.\n#######\n#.....#\n#..@.D#\n#######",
    "You are at the door.\n#######\n#.....#\n#...@D#\n#######",
]
REPLIES = [
    ("The key is north-east of me.\n<action>north</action>", "north"),
    ("Une clé à côté! 鍵 is east.\n<action>take key</action>", "take key"),
    ("I should think about where the door might be and", None),
    ("<action>east</action>", "east"),
    ("<action>open door</action>", "open door"),
]


def pieces(text: str) -> list[str]:
    """Word-like tokens; what is not ASCII falls into a replacement character and the character, as bytes do."""
    found: list[str] = []
    for piece in re.findall(r"\n|\s?[^\s<>]+|[<>]|\s", text):
        if piece.isascii():
            found += [piece[i : i + 6] for i in range(0, len(piece), 6)]
        else:
            found += [half for letter in piece for half in ((letter,) if letter.isascii() else ("\ufffd", letter))]
    return found


def make_trajectory(rng: np.random.Generator, step: int, attempt: int, success: bool, version: int) -> dict[str, Any]:
    """An episode of five turns: three in branch 0, two in branch 1, which re-tells the turns before."""
    system = "You walk in a small environment with keys and doors. Find the key, then open the door. " * 3
    rows: list[list[tuple[str, int]]] = [[(piece, -1) for piece in pieces(system)], []]
    rows[1] = list(rows[0])
    turns = []
    for index, (observed, (reply, action)) in enumerate(zip(OBSERVATIONS, REPLIES)):
        row = rows[index > 2]
        if index == 3:
            row += [(piece, -1) for old, _ in REPLIES[:3] for piece in pieces(old)]
        row += [(piece, -1) for piece in pieces(f"<user>\n{observed}<assistant>")]
        start = len(row)
        row += [(piece, index) for piece in pieces(reply)]
        turns.append(
            Turn(
                index=index,
                observation=observed,
                reply=reply,
                action=action,
                reward=float(success and index == 4),
                penalty=0.1 if action is None else 0.0,
                info={"valid_action": action is not None} | ({"success": success} if index == 4 else {}),
                state_key=f"2,{index}|key={index > 1}",
                span=Span(int(index > 2), start, len(row)),
                finish="length" if action is None else "stop",
            )
        )
    rows[0].append(("<end>", -1))
    advantage = [float(rng.normal(0.35 if success else -0.3, 0.4)) for _ in turns]
    advantage[2] = -0.62
    branches, text, token_advantage = [], [], []
    for row in rows:
        turn = np.array([index for _, index in row], dtype=np.int32)
        sampled = turn >= 0
        branches.append(
            Branch(
                ids=rng.integers(0, 50_000, len(row), dtype=np.int32),
                turn=turn,
                logprobs=np.where(sampled, -rng.exponential(0.6, len(row)), 0).astype(np.float32),
                versions=np.where(sampled, version + (turn > 2), -1).astype(np.int32),
            )
        )
        text.append([piece for piece, _ in row])
        token_advantage.append([None if i < 0 else advantage[i] * float(rng.uniform(0.3, 1.0)) for i in turn])
    trajectory = Trajectory(
        env="keydoor-5x5",
        split="train",
        task=step % 7,
        seed=step,
        attempt=attempt,
        turns=tuple(turns),
        stop=StopReason.TERMINATED if success else StopReason.MAX_TURNS,
        final_observation="The door opens." if success else "Night falls.",
        branches=tuple(branches),
        forks=("the chat template strips the thinking of earlier turns",),
    )
    annotations = {
        "value": [float(0.2 + 0.12 * index + rng.normal(0, 0.05)) for index in range(5)],
        "advantage": advantage,
        "token_advantage": token_advantage,
        "token_text": text,
    }
    return {**trajectory.to_json(), "annotations": annotations}


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")


def make_run(run: Path, steps: int = 120, every: int = 20, attempts: int = 8) -> Path:
    """A warm-up, `steps` of reinforcement learning with evaluations, and trajectories of some steps."""
    rng = np.random.default_rng(3)
    records: list[dict[str, Any]] = []
    for step in range(40):
        records.append({"phase": "sft", "step": step, "loss/policy": 2.1 * 0.93**step + 0.2 + rng.normal(0, 0.03)})
        records[-1] |= {
            "optim/grad_norm": 1.5 * 0.95**step + rng.uniform(0, 0.3),
            "time/learn_s": rng.uniform(0.8, 1.1),
        }
    for step in range(1, steps + 1):
        success = 0.12 + 0.66 / (1 + np.exp(-(step - steps * 0.45) / (steps * 0.11)))
        records.append(
            {
                "phase": "rl",
                "step": step,
                "rollout/success": round(float(np.clip(success + rng.normal(0, 0.06), 0, 1)) * 64) / 64,
                "rollout/score": success * 0.9 + rng.normal(0, 0.05),
                "rollout/turns": 11 - 5 * success + rng.normal(0, 0.3),
                "rollout/invalid": max(0.0, 0.3 * (1 - success) + rng.normal(0, 0.02)),
                "rollout/truncated": max(0.0, 0.6 * (1 - success) + rng.normal(0, 0.03)),
                "credit/zero_fraction": float(rng.uniform(0.1, 0.3)),
                "policy/entropy": 1.4 - success + rng.normal(0, 0.03),
                "policy/clip_high": float(rng.uniform(0, 0.04)),
                "policy/kl_old": float(rng.uniform(0.0002, 0.004)),
                "policy/engine_gap": float(rng.uniform(2e-6, 9e-6)),
                "value/explained_variance": success - 0.15 + rng.normal(0, 0.08) if step > 8 else None,
                "loss/policy": rng.normal(0, 0.02),
                "loss/value": 0.3 * (1 - success) + rng.uniform(0, 0.03),
                "optim/grad_norm": rng.lognormal(-0.5, 0.4),
                "time/rollout_s": rng.uniform(6, 9),
                "time/learn_s": rng.uniform(3, 4),
                "custom/my_own": float("nan") if step == 5 else 1200.0 + step,
            }
        )
        if step % every == 0 or step == 1:
            low, high = max(0.0, success - 0.09), min(1.0, success + 0.08)
            records.append({"phase": "eval", "step": step, "eval/success": success, "eval/low": low, "eval/high": high})
    write_lines(run / "metrics.jsonl", records)
    for step in range(every, steps + 1, every):
        written = [make_trajectory(rng, step, i, bool(rng.random() < step / steps), step) for i in range(attempts)]
        write_lines(run / "trajectories" / f"step-{step:06d}.jsonl", written)
    (run / "config.toml").write_text('[model]\nname = "tiny"\n\n[credit]\nmethod = "gae"\nlambda = 0.95\n')
    (run / "eval").mkdir()
    part = {"tasks": 64, "attempts": 4, "failed": 2}
    summary = {
        "before": {"success": 0.1289, "low": 0.086, "high": 0.181, **part},
        "after": {"success": 0.7734, "low": 0.711, "high": 0.832, **part},
        "difference": {"estimate": 0.6445, "low": 0.567, "high": 0.719},
    }
    (run / "eval" / "summary.json").write_text(json.dumps(summary))
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "keydoor gae & <friends>")


def embedded(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8")
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    return json.loads(found)


def minimal(run: Path, text: str = '{"phase": "rl", "step": 1, "rollout/success": 0.5}\n') -> Path:
    run.mkdir()
    (run / "metrics.jsonl").write_text(text)
    return run


def test_everything_is_embedded_once(run: Path) -> None:
    page = write_report(run)
    assert page == run / "report.html"
    data = embedded(page)
    assert data["run"] == "keydoor gae & <friends>"
    assert "<title>keydoor gae &amp; &lt;friends&gt;" in page.read_text(encoding="utf-8")
    learning, warm_up = data["curves"]["phases"]  # evaluations are drawn into the success of the first
    assert (learning["title"], warm_up["title"]) == ("Reinforcement learning", "Supervised warm-up")
    assert learning["success"]["name"] == "rollout/success"
    assert [mark["x"] for mark in learning["marks"]] == [1, 20, 40, 60, 80, 100, 120]
    assert [one["name"] for one in warm_up["series"]] == ["loss/policy", "optim/grad_norm", "time/learn_s"]
    assert ["Evaluation", "7 evaluations"] in data["curves"]["facts"]
    assert data["total"] == len(data["trajectories"]) == 48
    assert data["notes"] == []
    first = json.loads((run / "trajectories" / "step-000020.jsonl").read_text(encoding="utf-8").splitlines()[0])
    original, shown = Trajectory.from_json(first), data["trajectories"][0]
    assert shown["turns"][1]["observation"] == OBSERVATIONS[1]
    for branch, packed in zip(original.branches, shown["branches"]):
        assert packed["id"] == branch.ids.tolist()
        assert packed["turn"] == branch.turn.tolist()
        assert packed["logprob"] == pytest.approx(branch.logprobs.tolist(), rel=1e-4)
    # Every token lies in exactly one turn's stretch, the turn's sampled ones in its own.
    covered = [(turn["tokens"][0], i) for turn in shown["turns"] for i in range(*turn["tokens"][1:])]
    assert len(set(covered)) == len(covered) == sum(len(branch.ids) for branch in original.branches)
    for turn in original.turns:
        assert turn.span is not None
        branch, start, stop = shown["turns"][turn.index]["tokens"]
        assert branch == turn.span.branch
        assert start <= turn.span.start
        assert turn.span.stop <= stop


def test_script_cannot_be_closed_by_data(run: Path) -> None:
    text = write_report(run).read_text(encoding="utf-8")
    assert text.count("</script>") == 2
    assert "<!--" not in text


def test_missing_folder_and_metrics(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no run folder"):
        write_report(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"no metrics\.jsonl"):
        write_report(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"phase": "rl", "st')
    with pytest.raises(CheckpointError, match="no line of metrics"):
        write_report(tmp_path)


def test_optional_parts_may_be_absent(tmp_path: Path) -> None:
    data = embedded(write_report(minimal(tmp_path / "run")))
    assert (data["evaluation"], data["config"], data["trajectories"], data["notes"]) == (None, None, [], [])


def test_cut_and_foreign_lines_are_skipped_with_a_note(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=20, attempts=3)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('[1]\n{"phase": "rl", "step": 21, "rollout/succ')
    path = run / "trajectories" / "step-000020.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([lines[0], '{"turns": 3}\n', lines[2][: len(lines[2]) // 2]]), encoding="utf-8")
    (run / "eval" / "summary.json").write_text('{"before"')
    data = embedded(write_report(run))
    assert data["evaluation"] is None
    assert data["total"] == 2  # the cut line is none
    assert len(data["trajectories"]) == 1
    notes = "\n".join(data["notes"])
    assert "step-000020.jsonl, line 3 is cut off and was skipped." in notes
    assert "step-000020.jsonl, line 2 is not a trajectory and was skipped." in notes
    assert re.search(r"metrics\.jsonl, line \d+ is cut off", notes)
    assert re.search(r"metrics\.jsonl, line \d+ is not a line of metrics", notes)
    assert "summary.json could not be read" in notes


def test_annotations_that_do_not_fit_are_left_out_with_a_note(tmp_path: Path) -> None:
    run = minimal(tmp_path / "run")
    record = make_trajectory(np.random.default_rng(0), 1, 0, True, 1)
    bare = {name: value for name, value in record.items() if name != "annotations"}
    short = record | {"annotations": record["annotations"] | {"value": [0.1], "token_text": [["a"], ["b"]]}}
    write_lines(run / "trajectories" / "step-000001.jsonl", [bare, short])
    data = embedded(write_report(run))
    assert [turn["value"] for turn in data["trajectories"][1]["turns"]] == [None] * 5
    assert data["trajectories"][0]["branches"][0]["text"] is None
    assert data["trajectories"][1]["branches"][0]["text"] is None
    assert data["trajectories"][1]["branches"][0]["advantage"] is not None
    assert len(data["notes"]) == 1
    assert "line 2: annotations that do not fit" in data["notes"][0]


def test_page_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = minimal(tmp_path / "run")
    record = make_trajectory(np.random.default_rng(0), 1, 0, True, 1)
    for step in range(0, 300, 10):
        write_lines(run / "trajectories" / f"step-{step:06d}.jsonl", [record] * (100 if step == 290 else 10))
    data = embedded(write_report(run))
    assert data["total"] == 390
    assert len(data["trajectories"]) == trajectories.TRAJECTORIES
    assert {t["step"] for t in data["trajectories"]} == set(range(0, 300, 10))
    monkeypatch.setattr(trajectories, "TRAJECTORY_BYTES", 200_000)
    page = write_report(run)
    kept = embedded(page)["trajectories"]
    assert 3 < len(kept) < 100
    assert page.stat().st_size < 300_000
    assert (kept[0]["step"], kept[-1]["step"]) == (0, 290)
    monkeypatch.setattr(trajectories, "TOKEN_BYTES", 5_000)
    data = embedded(write_report(run))
    assert data["trajectories"][0]["branches"] == []
    assert "too large to be shown with its tokens" in data["notes"][0]
    assert len(data["notes"]) == report_page.NOTES + 1


def test_long_curves_keep_their_spikes(tmp_path: Path) -> None:
    values = [0.0] * 50_000
    values[31_234], values[44_444] = 9.0, -9.0
    lines = (json.dumps({"phase": "rl", "step": i, "optim/grad_norm": v}) + "\n" for i, v in enumerate(values))
    (series,) = embedded(write_report(minimal(tmp_path / "run", "".join(lines))))["curves"]["phases"][0]["series"]
    assert len(series["x"]) <= curves.POINTS + 2
    assert series["y"][series["x"].index(31_234)] == 9
    assert series["y"][series["x"].index(44_444)] == -9
    assert (series["x"][0], series["x"][-1]) == (0, 49_999)


def test_resumed_steps_count_once_and_nan_is_a_gap(tmp_path: Path) -> None:
    lines = [{"step": 2, "loss/policy": 1.0}, {"step": 1, "loss/policy": float("nan")}, {"step": 2, "loss/policy": 3.0}]
    text = "".join(json.dumps({"phase": "sft", **line}) + "\n" for line in lines)
    (series,) = embedded(write_report(minimal(tmp_path / "run", text)))["curves"]["phases"][0]["series"]
    assert (series["x"], series["y"]) == ([1, 2], [None, 3.0])


@contextmanager
def browse(path: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> Iterator[Any]:
    """The page, opened from disk in a real browser. At the end: no error in its console, nothing fetched but it."""
    sync = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip("needs a Chromium: apt-get install chromium-headless-shell")
    options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    errors: list[str] = []
    requests: list[str] = []
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=options)
        try:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.on("console", lambda message: errors.append(message.text) if message.type != "log" else None)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("request", lambda request: requests.append(request.url))
            page.goto(path.as_uri())
            yield page
        finally:
            browser.close()
    assert errors == []
    assert requests == [path.as_uri()]


def shoot(page: Any, name: str, **options: Any) -> None:
    """A screenshot to look at, where AGENTGYM_SCREENSHOTS names a folder."""
    if folder := os.environ.get("AGENTGYM_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", **options)


@pytest.mark.browser
def test_page_in_a_browser(run: Path) -> None:
    path = write_report(run)
    data = embedded(path)
    with browse(path) as page:
        assert "12.9 %" in page.inner_text("#headline")
        assert "77.3 %" in page.inner_text("#headline")
        assert "+64.5 points" in page.inner_text("#headline")
        assert "keydoor gae & <friends>" in page.inner_text("h1")
        assert page.is_hidden("#config pre")
        shoot(page, "top-1280", full_page=False)

        # Pointing at one chart reads all charts of its phase at that step.
        success, entropy = page.locator(".chart.large"), page.locator('.chart[data-name="Entropy"]')
        before = entropy.locator("output").inner_text()
        box = entropy.locator("svg").bounding_box()
        entropy.locator("svg").hover(position={"x": box["width"] / 2, "y": 40})
        assert entropy.locator("output").inner_text() != before
        step = re.search(r"step (\d+)", entropy.inner_text())
        assert step is not None
        assert 40 < int(step[1]) < 80
        assert f"step {step[1]}" in success.inner_text()
        shoot(page, "hover-1280")
        page.mouse.move(2, 2)
        assert entropy.locator("output").inner_text() == before
        entropy.locator("svg").focus()
        page.keyboard.press("ArrowLeft")
        assert "step 119" in entropy.inner_text()
        entropy.locator("svg").blur()

        # Trajectories change by button, by arrow key and with the step.
        assert page.input_value("#step") == "120"
        names = [page.inner_text("#episode .name")]
        page.click("#attempts button:nth-child(3)")
        assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"  # focus stays
        names.append(page.inner_text("#episode .name"))
        page.locator("body").press("ArrowRight")
        names.append(page.inner_text("#episode .name"))
        assert page.inner_text("#place") == "4 of 8"
        page.locator("body").press("Shift+ArrowLeft")
        names.append(page.inner_text("#episode .name"))
        assert page.input_value("#step") == "100"
        page.select_option("#step", "20")
        names.append(page.inner_text("#episode .name"))
        assert len(set(names)) == 5
        shown = data["trajectories"][0]
        assert page.locator(".turn").count() == len(shown["turns"])
        assert page.locator(".turn pre.observation").nth(1).inner_text() == OBSERVATIONS[1]
        assert "strips the thinking" in page.inner_text(".fork")
        assert page.locator(".badge.invalid").count() == 1
        amounts = [text.replace("−", "-") for text in page.locator(".credit .amount").all_inner_texts()]
        assert [float(text) for text in amounts] == pytest.approx([t["advantage"] for t in shown["turns"]], abs=0.006)
        bars = page.locator(".signed i").evaluate_all("all => all.map(bar => [bar.style.left, bar.style.right])")
        assert [left == "50%" for left, _ in bars] == [turn["advantage"] >= 0 for turn in shown["turns"]]

        # Tokens: all of them, coloured as chosen, with numbers in a tooltip and in a table.
        assert page.locator(".chip").count() == 0
        page.click("#open-all")
        ids = [number for branch in shown["branches"] for number in branch["id"]]
        turns = [index for branch in shown["branches"] for index in branch["turn"]]
        page.wait_for_function("count => document.querySelectorAll('.chip').length === count", arg=len(ids))
        assert page.locator(".chip.sampled").count() == sum(index >= 0 for index in turns)
        colours = {}
        for choice in ("logprob", "mask", "version", "advantage"):
            page.locator(f"#colour input[value={choice}]").check(force=True)
            chips = "all => all.map(chip => getComputedStyle(chip).backgroundColor)"
            colours[choice] = page.locator(".chip.sampled").evaluate_all(chips)
        assert len({tuple(each) for each in colours.values()}) == 4
        assert (len(set(colours["mask"])), len(set(colours["version"]))) == (1, 2)
        chip = page.locator(".chip.sampled", has_text="take").first
        chip.hover()
        assert page.is_visible("#tip")
        assert re.search(r"advantage\s+[+−]\d\.\d{4}", page.inner_text("#tip"))
        assert re.search(r"log-probability\s+−\d\.\d{4}", page.inner_text("#tip"))
        shoot(page, "tokens-1280")
        page.locator("#form input[value=table]").check(force=True)
        assert page.locator(".token-table tbody tr").count() == len(ids)
        assert page.locator(".chip").count() == 0
        shoot(page, "table-1280")
        page.locator("#form input[value=chips]").check(force=True)
        page.click("#open-all")
        page.evaluate("scrollTo(0, 0)")
        shoot(page, "full-1280", full_page=True)


@pytest.mark.browser
def test_narrow_and_dark(run: Path) -> None:
    path = write_report(run)
    for width, scheme in ((400, "light"), (400, "dark"), (1280, "dark")):
        with browse(path, width, 850, scheme) as page:
            page.locator("details.tokens > summary").nth(1).click()
            page.wait_for_selector(".chip")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(246, 246, 243)"
            assert light == (scheme == "light")
            page.evaluate("scrollTo(0, 0)")
            shoot(page, f"full-{width}-{scheme}", full_page=True)


@pytest.mark.browser
def test_barest_page(tmp_path: Path) -> None:
    """One step, no evaluation, no trajectories; then a trajectory without tokens, and one that failed at once."""
    run = minimal(tmp_path / "run")
    with browse(write_report(run)) as page:
        assert "no evaluation" in page.inner_text("#headline")
        assert page.is_hidden("#credit")
        assert page.is_hidden("#notes")
        shoot(page, "barest", full_page=True)
    record = make_trajectory(np.random.default_rng(0), 1, 0, False, 1)
    failed = record | {"turns": [], "branches": [], "forks": [], "stop": "environment_failed", "error": "No answer."}
    failed["annotations"] = {"value": [], "advantage": [], "token_advantage": [], "token_text": []}
    remote = {name: value for name, value in record.items() if name != "annotations"} | {"branches": [], "forks": []}
    write_lines(run / "trajectories" / "step-000001.jsonl", [remote, failed])
    with browse(write_report(run)) as page:
        assert page.locator(".turn").count() == 5
        assert page.locator("details.tokens").count() == 0
        page.locator("body").press("ArrowRight")
        assert "No answer." in page.inner_text("#turns")
        assert "not scored" in page.inner_text("#episode")
        shoot(page, "failed", full_page=True)
