"""What an image's name says, and what engines of other versions say of images."""

from __future__ import annotations

import pytest

from shoal.bootstrap.containers import container_errors
from shoal.bootstrap.containers.container_errors import Case
from shoal.bootstrap.containers.image_pull import repository
from shoal.core.errors import ConfigError, SetupError
from shoal.spec.cluster_spec import ContainerSpec

CASE = Case("worker-1", ContainerSpec("registry.example:5000/team/box:2", "box"), "ubuntu")


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
def test_a_repository_is_the_name_without_tag_and_digest(image: str, name: str) -> None:
    assert repository(image) == name


@pytest.mark.parametrize(
    ("said", "kind", "what"),
    [
        (
            "pull access denied for box, repository does not exist or may require 'docker login': "
            "denied: requested access to the resource is denied",
            ConfigError,
            "there is no image",
        ),
        ("Error: reading manifest 2 in r/box: name unknown", ConfigError, "there is no image"),
        ("unauthorized: incorrect username or password", ConfigError, "does not let us in"),
        ("failed to register layer: no space left on device", SetupError, "disk is full"),
        ("Get https://r/v2/: dial tcp: i/o timeout", SetupError, "cannot be reached"),
        ("toomanyrequests: You have reached your pull rate limit", SetupError, "not be pulled"),
    ],
)
def test_what_an_engine_says_of_a_pull_decides_what_we_say(
    said: str, kind: type[Exception], what: str
) -> None:
    error = container_errors.no_image(CASE, [said, ""])
    assert type(error) is kind and what in error.what and error.node == "worker-1"
    assert error.why


def test_an_engine_whose_daemon_does_not_answer_is_not_running() -> None:
    said = ["Cannot connect to the Docker daemon at unix:///var/run/docker.sock."]
    error = container_errors.no_engine(CASE, 1, said)
    assert error.what == "docker is not running on the machine" and error.fix
