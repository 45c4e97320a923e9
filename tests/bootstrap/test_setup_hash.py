"""The setup hash decides whether a node may start from the image of another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shoal.bootstrap.setup_hash import setup_hash
from shoal.spec.cluster_spec import ContainerSpec, FilesSpec, NodeSetup
from tests.specs import cluster


def hash_of(*commands: str, files: str = "files", **setup: Any) -> str:
    """The hash of a worker with these setup commands and a file mount at ~/app."""
    spec = cluster(setup=NodeSetup(setup_commands=commands, **setup))
    spec = replace(spec, files=FilesSpec(mounts={"~/app": "/laptop/app"}))
    return setup_hash(spec, "worker", "worker", files)


def test_without_commands_and_container_there_is_nothing_to_bake() -> None:
    assert hash_of() == ""


@pytest.mark.parametrize(
    "other",
    [
        hash_of("pip install b"),
        hash_of("pip install a", initialization_commands=("true",)),
        hash_of("pip install a", container=ContainerSpec("rayproject/ray", "ray")),
    ],
)
def test_other_commands_or_another_container_are_another_image(other: str) -> None:
    assert other not in ("", hash_of("pip install a"))


def test_files_count_only_if_a_command_names_one_of_the_mounts() -> None:
    assert hash_of("pip install a", files="old") == hash_of("pip install a", files="new")
    for command in ("pip install -r ~/app/a.txt", "cd $HOME/app", "sh /home/ubuntu/app/setup.sh"):
        assert hash_of(command, files="old") != hash_of(command, files="new"), command


def test_start_commands_do_not_count() -> None:
    assert hash_of("true", start_commands=("ray start",)) == hash_of("true")
