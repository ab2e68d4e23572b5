"""The program of the process that asks SWE-bench's own package: a line of JSON in, a line out.

{"operation": "script", "record": {...}}                  the script that runs a record's tests
{"operation": "report", "record": {...}, "log": "..."}    whether the log says that the issue is resolved; null where no
                                                          test was run

It needs nothing but the package swebench, so that it runs in any interpreter that has it.
"""

import json
import sys
import tempfile


def answer(request):
    from swebench.harness.constants import FAIL_TO_PASS, PASS_TO_PASS, EvalType, ResolvedStatus  # pyright: ignore[reportMissingImports]
    from swebench.harness.grading import get_eval_tests_report, get_logs_eval, get_resolution_status  # pyright: ignore[reportMissingImports]
    from swebench.harness.utils import make_test_spec  # pyright: ignore[reportMissingImports]

    test_spec = make_test_spec(request["record"])
    if request["operation"] == "script":
        return test_spec.eval_script
    with tempfile.NamedTemporaryFile("w", suffix=".log", encoding="utf-8") as log:
        log.write(request["log"])
        log.flush()
        statuses, found = get_logs_eval(test_spec, log.name)
    if not found:
        return None
    expected = {FAIL_TO_PASS: test_spec.FAIL_TO_PASS, PASS_TO_PASS: test_spec.PASS_TO_PASS}
    report = get_eval_tests_report(statuses, expected, eval_type=EvalType(test_spec.eval_type))
    return get_resolution_status(report) == ResolvedStatus.FULL.value


def main():
    out, sys.stdout = sys.stdout, sys.stderr  # what the package prints is no answer
    for line in sys.stdin:
        try:
            reply = {"result": answer(json.loads(line))}
        except Exception as error:  # noqa: BLE001  (said to who asked)
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    main()
