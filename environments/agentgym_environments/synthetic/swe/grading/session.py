"""Files and command of one run of hidden tests, in whatever place they are run."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from agentgym_environments.synthetic.swe.grading.template import Script


def session_files(
    visible: Mapping[str, bytes], files: Mapping[str, bytes | None], script: Script, root: str
) -> dict[str, bytes]:
    """Return path -> content of the package's `visible` files, with `files` in place of its own (one that is None is
    left out), and of the script's tests. root: folder that Python imports from."""
    prefix = f"{root}/" if root else ""
    hidden = {f"{prefix}{path}" if path == f"{script.plugin}.py" else path: one for path, one in script.files.items()}
    return {path: content for path, content in {**visible, **files}.items() if content is not None} | hidden


def pytest_arguments(script: Script, tests: Collection[str], folder: str) -> list[str]:
    """Return what follows `python -P -m pytest` to run the files `tests` of a script that lie in `folder`."""
    options = "-q --tb=no --assert=plain -p no:cacheprovider -c /dev/null --import-mode=prepend"
    options += f" --continue-on-collection-errors --rootdir={folder}"
    return [*options.split(), "-p", script.plugin, *sorted(tests)]
