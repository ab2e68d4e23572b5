"""The manifests for Kubernetes, without a cluster: each is of its schema, what they name of each other is there, every
container has its limits, and the run that the RayJob starts is one that fits its machines.

Kubernetes' own kinds are checked against its schemas where `kubernetes-validate` is installed (`make scale` does).
KubeRay's has no schema on PyPI, so that what we use of it is written down here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from agentgym_trainers.recipe import resolve

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install pyyaml")

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
SCHEMA = "1.31"
READ = [
    (path.stem, document)
    for path in sorted(FOLDER.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
EVERY: list[dict[str, Any]] = [document for _, document in READ]
DOCUMENTS = [
    pytest.param(document, id=f"{of}: {document['kind']} {document['metadata']['name']}") for of, document in READ
]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PodTemplate(Strict):
    spec: dict[str, Any]


class Group(Strict):
    rayStartParams: dict[str, str]
    template: PodTemplate


class WorkerGroup(Group):
    groupName: str = Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
    replicas: int = Field(ge=0)
    minReplicas: int = Field(ge=0)
    maxReplicas: int = Field(ge=1)


class RayCluster(Strict):
    rayVersion: str
    headGroupSpec: Group
    workerGroupSpecs: list[WorkerGroup]


class RayJobSpec(Strict):
    """What we use of KubeRay's ray.io/v1."""

    entrypoint: str
    submissionMode: str = Field(pattern="^(K8sJobMode|HTTPMode|SidecarMode)$")
    backoffLimit: int
    shutdownAfterJobFinishes: bool
    ttlSecondsAfterFinished: int
    rayClusterSpec: RayCluster


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [document for document in EVERY if document["kind"] == kind]


def ray_job() -> RayJobSpec:
    (job,) = of_kind("RayJob")
    assert job["apiVersion"] == "ray.io/v1"
    return RayJobSpec.model_validate(job["spec"])


def pods() -> Iterator[dict[str, Any]]:
    yield from (deployment["spec"]["template"]["spec"] for deployment in of_kind("Deployment"))
    cluster = ray_job().rayClusterSpec
    yield from (group.template.spec for group in [cluster.headGroupSpec, *cluster.workerGroupSpecs])


@pytest.mark.skipif(
    util.find_spec("kubernetes_validate") is None,
    reason="kubernetes-validate is not installed here: run `make scale`, or pip install kubernetes-validate",
)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_it_is_of_its_schema(document: dict[str, Any]) -> None:
    import kubernetes_validate  # pyright: ignore[reportMissingImports]

    if document["kind"] == "RayJob":
        cluster = ray_job().rayClusterSpec
        for group in [cluster.headGroupSpec, *cluster.workerGroupSpecs]:
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, "spec": group.template.spec}
            kubernetes_validate.validate(pod, SCHEMA, strict=True)
        return
    kubernetes_validate.validate(document, SCHEMA, strict=True)


def test_every_container_has_limits_and_may_do_little() -> None:
    for pod in pods():
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert (
                container["resources"]["requests"].keys()
                == container["resources"]["limits"].keys()
                >= {"cpu", "memory"}
            )
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    for deployment in of_kind("Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert all(container["securityContext"]["readOnlyRootFilesystem"] for container in pod["containers"])


def test_what_they_name_of_each_other_is_there() -> None:
    claims = {claim["metadata"]["name"] for claim in of_kind("PersistentVolumeClaim")}
    for pod in pods():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {
            v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v
        } <= claims
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
    templates = [deployment["spec"]["template"] for deployment in of_kind("Deployment")]
    for deployment, template in zip(of_kind("Deployment"), templates, strict=True):
        assert deployment["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    for service in of_kind("Service"):
        wanted = service["spec"]["selector"].items()
        (behind,) = [template for template in templates if wanted <= template["metadata"]["labels"].items()]
        ports = {port["name"] for container in behind["spec"]["containers"] for port in container["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_every_env_is_one_that_there_is() -> None:
    from agentgym import registry

    for deployment in of_kind("Deployment"):
        if deployment["metadata"]["labels"].get("part") == "env":
            (container,) = deployment["spec"]["template"]["spec"]["containers"]
            assert set(container["args"]) <= registry.list_envs().keys()


def test_the_run_resolves_and_its_machines_have_room_for_it() -> None:
    job = ray_job()
    verb, what, recipe, *rest = shlex.split(job.entrypoint)
    assert (verb, what) == ("agentgym", "train")
    assert rest[:2] == ["--scale", "ray"]
    config = resolve(recipe, ["scale.kind=ray", *(part for part in rest if "=" in part)])
    assert config.scale is not None
    scale, (group,) = config.scale, job.rayClusterSpec.workerGroupSpecs
    has = group.template.spec["containers"][0]["resources"]["limits"]
    gpus = scale.learners * scale.learner_gpus + scale.servers * scale.server_gpus
    cpus = scale.learners * scale.learner_cpus + scale.servers * scale.server_cpus + scale.workers * scale.worker_cpus
    assert gpus == group.replicas * int(has["nvidia.com/gpu"])
    assert cpus <= group.replicas * int(has["cpu"])
    mounts = [mount["mountPath"] for mount in group.template.spec["containers"][0]["volumeMounts"]]
    assert config.engine.kind == "vllm"
    assert config.engine.weights is not None
    assert any(config.engine.weights.startswith(f"{mount}/") for mount in mounts)
