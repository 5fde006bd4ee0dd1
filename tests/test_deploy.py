"""What lies in `deploy/`: valid for the tools that read it, and true to the worker.

There is no container engine here. The Dockerfile is linted, Compose itself reads its file, the
Kubernetes manifest is held against the API's own schema, and what the containers would run is
run. Each check is also shown a mistake that it must find.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sysconfig
import uuid
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from temporalio.testing import WorkflowEnvironment

from durable_strands.worker.process import serve

from .conftest import temporal_binary

ROOT = Path(__file__).parent.parent
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
COMPOSE = ROOT / "deploy" / "compose.yaml"
MANIFEST = ROOT / "deploy" / "kubernetes" / "worker.yaml"
SCRIPTS = Path(sysconfig.get_path("scripts"))

KUBERNETES = ["1.30", kubernetes_validate.latest_version()]
"""The oldest release that the manifest is meant for, and the newest that the package knows."""


def tool(*command: str | Path) -> tuple[int, str]:
    """Run a tool that a Python package installed; return its exit code and what it said."""
    done = subprocess.run(
        [SCRIPTS / command[0], *command[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def lint(dockerfile: Path) -> tuple[int, str]:
    return tool("hadolint", "--no-color", dockerfile)


def read_by_compose(file: Path) -> tuple[int, str]:
    return tool("docker-compose", "--file", file, "config", "--quiet")


def compose() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return services


def manifest() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFEST.read_text()))


def changed(file: Path, old: str, new: str) -> str:
    text = file.read_text()
    assert old in text
    return text.replace(old, new, 1)


# -- Dockerfile --------------------------------------------------------------------------------


def test_the_dockerfile_has_no_findings() -> None:
    assert lint(DOCKERFILE) == (0, "")


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("FROM python:3.13-slim\n", "FROM python\n", "DL3006"),
        ('ENTRYPOINT ["durable-strands", "worker"]', "ENTRYPOINT durable-strands", "DL3025"),
        (" --no-cache-dir --disable", " --disable", "DL3042"),
        ("WORKDIR /app", "WORKDIR app", "DL3000"),
    ],
)
def test_a_mistake_in_the_dockerfile_is_found(
    tmp_path: Path, old: str, new: str, finding: str
) -> None:
    mistaken = tmp_path / "Dockerfile"
    mistaken.write_text(changed(DOCKERFILE, old, new))

    code, said = lint(mistaken)

    assert code != 0
    assert finding in said


def test_the_build_gets_what_it_copies_and_nothing_else() -> None:
    ignored, *allowed = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] != "#"
    ]
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text(), re.MULTILINE)

    assert ignored == "*"
    assert {line[1:] for line in allowed if line[0] == "!"} == {
        name for line in copied for name in line.split()
    }


# -- Compose -----------------------------------------------------------------------------------


def test_compose_reads_its_file() -> None:
    assert read_by_compose(COMPOSE) == (0, "")


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("stop_grace_period:", "stop_grace:", "stop_grace"),
        ("condition: service_healthy", "condition: healthy", "condition"),
        ("      postgres:\n", "      postgresql:\n", "postgresql"),
        ("source: dynamic-config", "source: dynamic", "dynamic"),
    ],
)
def test_a_mistake_in_the_compose_file_is_found(
    tmp_path: Path, old: str, new: str, finding: str
) -> None:
    mistaken = tmp_path / "compose.yaml"
    mistaken.write_text(changed(COMPOSE, old, new))

    code, said = read_by_compose(mistaken)

    assert code != 0
    assert finding in said


def test_every_image_has_a_full_version_but_our_own() -> None:
    images = {service["image"] for service in compose().values()} - {"durable-strands-worker"}

    assert all(re.fullmatch(r"[\w/-]+:\d+(\.\d+)+", image) for image in images)


def test_nothing_is_open_to_other_machines() -> None:
    published = [port for service in compose().values() for port in service.get("ports", ())]

    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def shell(service: str, path: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script of one of the services that end, with `path` as its only programs."""
    definition = compose()[service]
    arguments = [*definition["entrypoint"], *definition["command"]]
    return subprocess.run(
        [argument.replace("$$", "$") for argument in arguments],
        env={"PATH": path, **definition["environment"], **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_schemas_are_made_one_step_after_another(tmp_path: Path) -> None:
    stub = tmp_path / "temporal-sql-tool"
    stub.write_text('#!/bin/sh\necho "$SQL_PASSWORD $*"\n')
    stub.chmod(0o755)

    done = shell("temporal-schema", str(tmp_path))

    common = "temporal --plugin postgres12 --ep postgres -p 5432 -u temporal --db"
    versions = "/etc/temporal/schema/postgresql/v12"
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{common} temporal create",
        f"{common} temporal setup-schema -v 0.0",
        f"{common} temporal update-schema -d {versions}/temporal/versioned",
        f"{common} temporal_visibility create",
        f"{common} temporal_visibility setup-schema -v 0.0",
        f"{common} temporal_visibility update-schema -d {versions}/visibility/versioned",
    ]


def test_a_step_of_the_schemas_that_fails_is_the_last(tmp_path: Path) -> None:
    stub = tmp_path / "temporal-sql-tool"
    stub.write_text("#!/bin/sh\necho once\nexit 1\n")
    stub.chmod(0o755)

    done = shell("temporal-schema", str(tmp_path))

    assert (done.returncode, done.stdout) == (1, "once\n")


async def test_the_namespace_is_made_once(env: WorkflowEnvironment) -> None:
    namespace = f"compose-{uuid.uuid4()}"
    settings = {
        "TEMPORAL_ADDRESS": env.client.service_client.config.target_host,
        "TEMPORAL_NAMESPACE": namespace,
        "TEMPORAL_CONFIG_FILE": os.devnull,
    }
    path = f"{Path(temporal_binary()).parent}:{os.environ['PATH']}"

    first = await asyncio.to_thread(shell, "temporal-namespace", path, **settings)
    again = await asyncio.to_thread(shell, "temporal-namespace", path, **settings)

    assert first.returncode == 0, first.stderr
    assert f"Namespace {namespace} successfully registered" in first.stdout
    assert again.returncode == 0, again.stderr
    assert "registered." not in again.stdout


# -- Kubernetes --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_manifest_is_what_the_api_takes(version: str) -> None:
    for resource in manifest():
        kubernetes_validate.validate(resource, version, strict=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("readOnlyRootFilesystem", "readonlyRootFilesystem"),
        ("replicas: 2", "replicas: two"),
        ("- name: worker\n", "- named: worker\n"),
        ("kind: Deployment", "kind: Deploymnet"),
    ],
)
def test_a_mistake_in_the_manifest_is_found(old: str, new: str) -> None:
    _, deployment = yaml.safe_load_all(changed(MANIFEST, old, new))

    with pytest.raises(
        (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError)
    ):
        kubernetes_validate.validate(deployment, KUBERNETES[-1], strict=True)


def test_the_parts_of_the_manifest_fit_together() -> None:
    config, deployment = manifest()
    template = deployment["spec"]["template"]
    pod = template["spec"]
    (container,) = pod["containers"]

    selected = deployment["spec"]["selector"]["matchLabels"].items()
    assert selected <= template["metadata"]["labels"].items()
    assert container["envFrom"][0]["configMapRef"]["name"] == config["metadata"]["name"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    user, group = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE.read_text(), re.MULTILINE)[-1]
    assert str(pod["securityContext"]["runAsUser"]) == user
    assert str(pod["securityContext"]["runAsGroup"]) == group


# -- what the containers run -------------------------------------------------------------------


def instruction(name: str) -> list[str]:
    (arguments,) = re.findall(rf"^{name} (\[.+\])$", DOCKERFILE.read_text(), re.MULTILINE)
    command: list[str] = json.loads(arguments)
    return command


def in_kubernetes() -> list[str]:
    arguments: list[str] = manifest()[1]["spec"]["template"]["spec"]["containers"][0]["args"]
    return arguments


@pytest.mark.parametrize("arguments", [instruction("CMD"), in_kubernetes()])
async def test_the_worker_starts_as_in_the_container_and_ends_at_sigterm(
    env: WorkflowEnvironment, arguments: list[str], tmp_path: Path
) -> None:
    program, *fixed = instruction("ENTRYPOINT")
    worker = await asyncio.create_subprocess_exec(
        SCRIPTS / program,
        *(*fixed, *arguments),
        cwd=tmp_path,
        env={
            **os.environ,
            **manifest()[0]["data"],
            "TEMPORAL_ADDRESS": env.client.service_client.config.target_host,
            "DURABLE_STRANDS_TASK_QUEUE": f"deploy-{uuid.uuid4()}",
        },
        stderr=asyncio.subprocess.PIPE,
    )
    assert worker.stderr is not None
    said = b""
    while b"worker started" not in said:
        line = await worker.stderr.readline()
        assert line, said
        said += line
    worker.send_signal(signal.SIGTERM)
    await worker.communicate()

    assert worker.returncode == 0


def test_whoever_stops_the_worker_waits_until_it_has_drained() -> None:
    default: timedelta = signature(serve).parameters["drain"].default
    in_compose = re.fullmatch(r"(\d+)s", compose()["worker"]["stop_grace_period"])
    (drain,) = re.findall(r"--drain=(\d+)", " ".join(in_kubernetes()))
    grace = manifest()[1]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]

    assert in_compose is not None
    assert int(in_compose[1]) >= default.total_seconds() + 10
    assert grace >= int(drain) + 10
