"""Image names, and errors from the output of several versions of docker and podman."""

from __future__ import annotations

import pytest

from shoal.bootstrap.containers import container_errors
from shoal.bootstrap.containers.container_errors import ContainerContext
from shoal.bootstrap.containers.image_pull import repository
from shoal.core.errors import ConfigError, SetupError
from shoal.spec.cluster_spec import ContainerSpec

CONTEXT = ContainerContext(
    "worker-1", ContainerSpec("registry.example:5000/team/box:2", "box"), "ubuntu"
)


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("rayproject/ray:2.60.0", "rayproject/ray"),
        ("ubuntu", "ubuntu"),
        ("localhost:5000/box", "localhost:5000/box"),
        ("registry.example:5000/team/box:2", "registry.example:5000/team/box"),
        ("team/box:2@sha256:0123", "team/box"),
    ],
)
def test_repository_is_the_name_without_tag_and_digest(image: str, name: str) -> None:
    assert repository(image) == name


@pytest.mark.parametrize(
    ("output", "kind", "what"),
    [
        (
            "pull access denied for box, repository does not exist or may require 'docker login': "
            "denied: requested access to the resource is denied",
            ConfigError,
            "image not found",
        ),
        ("Error: reading manifest 2 in r/box: name unknown", ConfigError, "image not found"),
        ("unauthorized: incorrect username or password", ConfigError, "denied access"),
        ("failed to register layer: no space left on device", SetupError, "no space left"),
        ("Get https://r/v2/: dial tcp: i/o timeout", SetupError, "cannot reach"),
        ("toomanyrequests: You have reached your pull rate limit", SetupError, "could not pull"),
    ],
)
def test_output_of_a_failed_pull_decides_the_error(
    output: str, kind: type[Exception], what: str
) -> None:
    error = container_errors.pull_error(CONTEXT, [output, ""])
    assert type(error) is kind and what in error.what and error.node == "worker-1"
    assert error.why


def test_docker_whose_daemon_does_not_answer_is_not_running() -> None:
    output = ["Cannot connect to the Docker daemon at unix:///var/run/docker.sock."]
    error = container_errors.runtime_error(CONTEXT, 1, output)
    assert error.what == "docker is not running on the host" and error.fix


def test_the_reason_of_a_failed_start_is_not_the_hint_at_dockers_help() -> None:
    reason = "docker: Error response from daemon: setrlimit `RLIMIT_NOFILE`: not permitted"
    output = [reason, "", "Run 'docker run --help' for more information"]
    assert container_errors.create_error(CONTEXT, output).why == reason
