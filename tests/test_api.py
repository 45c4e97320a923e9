"""The Python API: one embedded cluster with real Ray, used as a program or a notebook uses it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal import Cluster, CommandFailedError, ShoalError, api
from tests.cli.conftest import temporary_home
from tests.cli.shoal_command import Home

YAML = "{cluster_name: other, provider: {type: embedded}, min_workers: 0}"


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    # As long as the home of a user whose name has 6 letters: `plasma_store` would just fit into it.
    with (
        temporary_home(prefix="shoal-a-longer-name") as home,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SHOAL_HOME", str(home.path))
        yield home


@pytest.fixture(scope="module")
def cluster(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    yaml = tmp_path_factory.mktemp("yaml") / "c.yaml"
    yaml.write_text(YAML)
    cluster = Cluster(yaml, cluster_name="api")
    cluster.up()
    return cluster


@pytest.mark.ray
def test_a_command_runs_in_the_directory_of_the_program(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_program.py").write_text("import ray; ray.init(); print('it ran')")
    assert cluster.exec("python my_program.py").stdout == "it ran\n"


@pytest.mark.ray
def test_output_arrives_byte_for_byte(cluster: Cluster, tmp_path: Path) -> None:
    data = b"x" * 20_000 + b"\r\n1%\r100%\n\377 no line break"
    (tmp_path / "data").write_bytes(data)
    result = cluster.exec(f"cat {tmp_path}/data; cat {tmp_path}/data >&2")
    assert (result.stdout_bytes, result.stderr_bytes) == (data, data)
    assert result.stdout == data.decode(errors="replace")


@pytest.mark.ray
def test_the_error_of_a_failed_command_has_its_standard_error(cluster: Cluster) -> None:
    with pytest.raises(CommandFailedError, match="exit code 3") as caught:
        cluster.exec("echo some output; echo the reason >&2; exit 3")
    assert "the reason" in str(caught.value)
    assert caught.value.result.stdout == "some output\n"
    assert cluster.exec("exit 3", check=False).code == 3


@pytest.mark.ray
def test_a_command_past_its_deadline_is_a_shoal_error(cluster: Cluster) -> None:
    with pytest.raises(ShoalError, match="did not end within 1 s"):
        cluster.exec("sleep 60", timeout=1)


@pytest.mark.ray
def test_a_running_cluster_is_opened_by_its_name_also_in_an_event_loop(cluster: Cluster) -> None:
    async def notebook_cell() -> str:
        opened = Cluster("api")
        assert opened.status().ready
        return opened.exec("echo hello").stdout

    assert asyncio.run(notebook_cell()) == "hello\n"


@pytest.mark.ray
def test_long_calls_show_progress(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.up()
    assert "api" in capfd.readouterr().err
    Cluster("api", on_event=lambda event: None).up()
    assert capfd.readouterr().err == ""


@pytest.mark.ray
def test_the_cluster_is_terminated_when_the_block_fails(home: Home, tmp_path: Path) -> None:
    yaml = tmp_path / "c.yaml"
    yaml.write_text(YAML)
    before = home.instance_ids()
    with pytest.raises(ShoalError, match="exit code 3"), Cluster(yaml) as cluster:
        instance_ids = home.instance_ids() - before
        assert cluster.status().ready
        cluster.exec("echo why; exit 3")
    assert len(instance_ids) == 1
    assert home.instance_ids() == before


@pytest.mark.parametrize("source", ["no-such-cluster", "/no/such/file.yaml"])
def test_a_cluster_that_does_not_exist_is_a_shoal_error(home: Home, source: str) -> None:
    with pytest.raises(ShoalError):
        Cluster(source)


def test_without_a_source_the_cluster_is_on_this_machine() -> None:
    assert Cluster(cluster_name="mine").spec.provider.type == "embedded"


def test_an_unexpected_exception_is_a_shoal_error() -> None:
    async def fail() -> None:
        raise PermissionError(13, "Permission denied", "/home/me/.cache/shoal")

    with pytest.raises(ShoalError, match=r"/home/me/\.cache/shoal"):
        api._run(fail())


def test_an_interrupt_in_an_event_loop_cancels_the_operation_and_waits_for_it() -> None:
    cleaned_up: list[str] = []

    async def operation() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        finally:
            cleaned_up.append("yes")

    async def notebook_cell() -> None:
        with pytest.raises(KeyboardInterrupt):
            api._run(operation())

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    loop = asyncio.new_event_loop()  # asyncio.run would handle SIGINT itself
    try:
        loop.run_until_complete(notebook_cell())
    finally:
        loop.close()
        signal.signal(signal.SIGINT, handler)
    assert cleaned_up == ["yes"]
