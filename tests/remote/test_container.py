"""Commands and files in a container on a host, and a cluster's containers on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.errors import SetupError
from shoal.remote.container import (
    CLUSTER_LABEL,
    RUNTIME_FILE,
    Container,
    exec_in_containers,
    remove_containers,
    remove_containers_script,
)
from shoal.remote.ssh_runner import SshRunner
from tests.remote.sshd import Sshd


async def test_a_command_runs_in_the_container(runner: SshRunner, container: Container) -> None:
    inside = runner.in_container(container)
    result = await inside.run('cat; echo "$V"', env={"V": "it's"}, stdin=b"input\n")
    assert result.tail == ("input", "it's")
    assert await inside.attach("exit 5", tty=False) == 5


async def test_files_are_copied_into_and_from_the_container(
    runner: SshRunner, server: Sshd, container: Container, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_text("1")
    inside = runner.in_container(container)
    await inside.put(tmp_path / "source", "~/target")
    assert (server.home / "target" / "a").read_text() == "1"
    await inside.get("target/a", tmp_path / "back")
    assert (tmp_path / "back").read_text() == "1"


async def test_a_container_that_does_not_exist_is_an_error(
    runner: SshRunner, container: Container
) -> None:
    missing = runner.in_container(Container(container.runtime, "missing"))
    with pytest.raises(SetupError, match="the container missing is not running"):
        await missing.run("true")


async def test_a_host_without_containers_is_left_alone(
    runner: SshRunner, server: Sshd, container: Container
) -> None:
    assert (await runner.run(exec_in_containers("demo", ["false"]))).ok
    assert (await runner.run(remove_containers("demo"))).ok
    assert (server.home / "containers").read_text() == "box\n"


async def test_a_command_runs_in_every_container_of_the_cluster(
    runner: SshRunner, server: Sshd, container: Container
) -> None:
    await _write_runtime_file(runner, container)
    (server.home / "containers").write_text("box\nbox-2\n")
    result = await runner.run(exec_in_containers("demo", ["printf", "%s\\n", "it's"]))
    assert result.tail == ("it's", "it's")
    assert f"label={CLUSTER_LABEL}=demo" in (server.home / "filters").read_text()
    assert not (await runner.run(exec_in_containers("demo", ["false"]))).ok


async def test_all_containers_of_the_cluster_are_removed(
    runner: SshRunner, server: Sshd, container: Container
) -> None:
    await _write_runtime_file(runner, container)
    (server.home / "containers").write_text("box\nbox-2\n")
    assert (await runner.run(remove_containers("demo"))).ok
    assert (server.home / "containers").read_text() == ""
    assert f"label={CLUSTER_LABEL}=demo" in (server.home / "filters").read_text()
    assert not (server.home / ".shoal/container").exists()


async def test_the_containers_of_the_cluster_are_found_where_a_dotfile_changes_the_directory(
    runner: SshRunner, server: Sshd, container: Container
) -> None:
    (server.home / ".bashrc").write_text("cd /tmp\n")
    await _write_runtime_file(runner, container)
    result = await runner.run(exec_in_containers("demo", ["echo", "found"]))
    assert result.tail == ("found",)
    assert (await runner.run(remove_containers("demo"))).ok
    assert (server.home / "containers").read_text() == ""


def test_the_script_for_other_scripts_is_the_same() -> None:
    assert RUNTIME_FILE in remove_containers_script()


async def _write_runtime_file(runner: SshRunner, container: Container) -> None:
    command = f"mkdir -p ~/.shoal; printf %s {container.runtime} > {RUNTIME_FILE}"
    assert (await runner.run(command)).ok
