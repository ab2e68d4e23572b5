"""ScienceWorld's Java engine, in a process of its own, with chance that can be seeded and a heap that stays small."""

from __future__ import annotations

import shutil
from typing import Any

from agentgym.errors import MissingDependency
from agentgym_environments.base.engine_env import package

JAVA = ("-Xmx{heap}m", "-XX:+UseSerialGC", "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")
"""The last makes sets, which the engine walks through, keep an order that does not depend on memory addresses."""


class ScienceWorldEngine:
    """One Java process and its Scala generator. heap_mb: the most memory for its objects, in MB."""

    def __init__(self, heap_mb: int) -> None:
        gateways = package("py4j.java_gateway", "scienceworld")
        paths = package("scienceworld.constants", "scienceworld")
        if shutil.which("java") is None:
            raise MissingDependency(
                "scienceworld runs in Java, which is not installed: apt-get install default-jre-headless"
            )
        port, process = gateways.launch_gateway(
            classpath=paths.JAR_PATH,
            javaopts=[option.format(heap=heap_mb) for option in JAVA],
            die_on_exit=True,
            cwd=paths.BASEPATH,
            return_proc=True,
        )
        self.process = process
        self.gateway: Any = gateways.JavaGateway(
            gateway_parameters=gateways.GatewayParameters(auto_field=True, auto_convert=True, port=port),
            java_process=process,
        )
        jvm = self.gateway.jvm
        self.server: Any = jvm.scienceworld.runtime.pythonapi.PythonInterface()
        module = jvm.java.lang.Class.forName("scala.util.Random$").getField("MODULE$")
        self._random: Any = module.get(None)

    def open(self, task: str, variation: int, simplifications: str, seed: int) -> list[str]:
        """Put the environment at the start of a task and return the engine's own solution."""
        self._random.setSeed(seed)
        self.server.load(task, variation, simplifications, True)
        plan = list(self.server.getGoldActionSequence())
        self._random.setSeed(seed)
        self.server.reset()
        return plan

    def close(self) -> None:
        """End the Java process."""
        self.gateway.shutdown()
        if self.process.stdin is not None:
            self.process.stdin.close()  # it ends when nobody can speak to it any more
        try:
            self.process.wait(timeout=5)
        except Exception:  # noqa: BLE001 - subprocess.TimeoutExpired; whatever it was, it must go
            self.process.kill()
            self.process.wait()
