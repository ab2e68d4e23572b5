"""JsonProcess: requests and answers of a child process, and every way in which a child may fail."""

from __future__ import annotations

import sys

import pytest

from agentgym.errors import EnvironmentCrashed
from agentgym_environments.backends.json_process import JsonProcess

ECHO = "import sys, json\nfor line in sys.stdin: print(json.dumps({'result': json.loads(line)}), flush=True)"


def child(program: str) -> JsonProcess:
    return JsonProcess([sys.executable, "-c", program], name="the child", own_group=True)


def test_answers_come_in_order_and_of_any_size():
    process = child(ECHO)
    try:
        for request in ("a", {"n": 1}, "é" * 300_000, None):
            assert process.ask(request, timeout_s=30) == request
    finally:
        process.close()
    assert not process.alive
    process.close()
    with pytest.raises(EnvironmentCrashed, match="the child is closed"):
        process.ask("again")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("print('hello', flush=True)", "answered b'hello', which is no answer"),
        ("print('3', flush=True)", "answered b'3', which is no answer"),
        ("print('{}', flush=True)", "answered b'{}', which is no answer"),
        ("raise SystemExit", "the child has ended"),
        ("import time; time.sleep(60)", "the child has ended"),
        ("print('x' * 5000, flush=True)", "the child has ended"),
    ],
)
def test_a_child_that_breaks_the_protocol_is_closed(answer, message):
    process = child(f"import sys\nfor line in sys.stdin: {answer}")
    with pytest.raises(EnvironmentCrashed, match=message):
        process.ask("go", timeout_s=2, max_bytes=1000)
    assert not process.alive


def test_an_error_of_the_child_leaves_it_running():
    process = child('import sys\nfor line in sys.stdin: print(\'{"error": "no such tab"}\', flush=True)')
    try:
        for _ in range(2):
            with pytest.raises(EnvironmentCrashed, match="the child failed: no such tab"):
                process.ask("go", timeout_s=30)
        assert process.alive
    finally:
        process.close()
