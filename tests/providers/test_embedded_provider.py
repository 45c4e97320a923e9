"""Embedded instances without Ray: directories, addresses, processes, and their termination."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.bootstrap import node_commands
from shoal.bootstrap.node_ray_start import ray_start_for
from shoal.core.clock import SystemClock
from shoal.core.errors import CapacityError
from shoal.providers.embedded import processes
from shoal.providers.embedded.embedded_provider import EmbeddedProvider
from shoal.providers.embedded.instance_store import InstanceStore, new_id
from shoal.providers.model import Instance, LaunchRequest
from tests.polling import alive, until
from tests.specs import cluster

SPEC = cluster(name="one")
HEAD = LaunchRequest("head", "head", 1, "t-head")
WORKERS = LaunchRequest("worker", "worker", 2, "t-workers")


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[EmbeddedProvider]:
    provider = EmbeddedProvider(tmp_path / "e", SystemClock())
    yield provider
    asyncio.run(_terminate_all(provider))


async def _terminate_all(provider: EmbeddedProvider) -> None:
    await provider.terminate(SPEC, await provider.list_instances())


async def test_each_instance_has_its_own_name_address_and_directory(
    provider: EmbeddedProvider, tmp_path: Path
) -> None:
    launched = await provider.launch(SPEC, [HEAD, WORKERS])
    assert [i.name for i in launched] == ["head", "worker-1", "worker-2"]
    assert len({i.address for i in launched}) == 3
    assert all(i.address.startswith("127.77.") for i in launched)
    assert {i.id for i in launched} == {p.name for p in (tmp_path / "e").iterdir() if p.is_dir()}


async def test_instances_are_listed_by_another_command(
    provider: EmbeddedProvider, tmp_path: Path
) -> None:
    launched = await provider.launch(SPEC, [HEAD, WORKERS])
    later = EmbeddedProvider(tmp_path / "e", SystemClock())
    assert sorted(await later.list_instances("one"), key=str) == sorted(launched, key=str)
    assert await later.list_instances("another") == []


async def test_a_repeated_token_launches_nothing_more(provider: EmbeddedProvider) -> None:
    first = await provider.launch(SPEC, [WORKERS])
    again = await provider.launch(SPEC, [WORKERS])
    assert again == first
    assert len(await provider.list_instances()) == 2


async def test_two_clusters_share_no_address_and_no_ports(provider: EmbeddedProvider) -> None:
    other = cluster(name="two")
    mine = await provider.launch(SPEC, [HEAD])
    theirs = await provider.launch(other, [LaunchRequest("head", "head", 1, "t")])
    assert mine[0].address != theirs[0].address
    starts = [
        ray_start_for(provider.capabilities, SPEC, *mine, *mine),
        ray_start_for(provider.capabilities, other, *theirs, *theirs),
    ]
    assert len({start.gcs_address.split(":")[1] for start in starts}) == 2


def test_concurrent_launches_get_different_addresses(
    provider: EmbeddedProvider,
) -> None:
    def launch_one(n: int) -> Instance:
        request = LaunchRequest("worker", "worker", 1, f"t{n}")
        return asyncio.run(provider.launch(SPEC, [request]))[0]

    with ThreadPoolExecutor(8) as pool:
        launched = list(pool.map(launch_one, range(16)))
    assert len({i.address for i in launched}) == 16
    assert len({i.name for i in launched}) == 16


async def test_a_crash_before_the_record_is_written_leaves_nothing(
    provider: EmbeddedProvider, tmp_path: Path
) -> None:
    torn = tmp_path / "e" / "deadbeef"
    torn.mkdir(parents=True)
    (torn / "instance.json.new").write_text('{"id": "deadb')
    assert await provider.list_instances() == []
    await provider.launch(SPEC, [HEAD])
    assert not torn.exists()


async def test_a_damaged_record_does_not_hide_other_instances(
    provider: EmbeddedProvider, tmp_path: Path
) -> None:
    await provider.launch(SPEC, [HEAD])
    bad = tmp_path / "e" / "deadbeef"
    bad.mkdir()
    (bad / "instance.json").write_text("[]")
    assert [i.name for i in await provider.list_instances()] == ["head"]


async def test_terminating_an_instance_ends_all_of_its_processes(
    provider: EmbeddedProvider, tmp_path: Path
) -> None:
    (instance,) = await provider.launch(SPEC, [HEAD])
    runner = provider.runner(SPEC, instance)
    # One ignores SIGTERM, one is an orphan, one has cleared its environment.
    done = await runner.run(
        "(trap '' TERM; while :; do sleep 0.2; done) & echo $!; "
        "setsid sleep 300 & echo $!; "
        "bash -c 'env -i sleep 300 & echo $! | tee third; wait' & "
        "until [ -s third ]; do sleep 0.05; done"
    )
    pids = [int(line) for line in done.tail]
    assert len(pids) == 3 and all(alive(pid) for pid in pids)
    await provider.terminate(SPEC, [instance])
    assert not [pid for pid in pids if alive(pid)]
    assert await provider.list_instances() == []
    assert [p.name for p in (tmp_path / "e").iterdir()] == [".lock"]


async def test_terminating_one_instance_keeps_the_processes_of_others(
    provider: EmbeddedProvider,
) -> None:
    one, two = await provider.launch(SPEC, [WORKERS])
    pids = []
    for instance in (one, two):
        done = await provider.runner(SPEC, instance).run("sleep 300 & echo $!")
        pids.append(int(done.tail[0]))
    await provider.terminate(SPEC, [one])
    assert not alive(pids[0])
    assert alive(pids[1])


async def test_stopping_ray_keeps_the_instance(provider: EmbeddedProvider) -> None:
    (instance,) = await provider.launch(SPEC, [HEAD])
    done = await provider.runner(SPEC, instance).run("sleep 300 & echo $!")
    await node_commands.stop_ray(SPEC, provider, [instance])
    assert not alive(int(done.tail[0]))
    assert await provider.list_instances() == [instance]


async def test_a_command_that_terminates_its_own_instance_is_not_ended(
    provider: EmbeddedProvider,
) -> None:
    """`shoal exec 'shoal down'`: the command is itself a process of the instance."""
    (instance,) = await provider.launch(SPEC, [HEAD])
    code = (
        "from shoal.providers.embedded.processes import processes_of; import sys;"
        "print(len(processes_of({sys.argv[1]})[sys.argv[1]]))"
    )
    env = {**os.environ, **processes.process_environment(instance.id)}
    done = subprocess.run(
        [sys.executable, "-c", code, instance.id], env=env, capture_output=True, text=True
    )
    assert done.stdout.strip() == "0", done.stderr


async def test_the_token_is_readable_by_its_owner_only(
    provider: EmbeddedProvider,
) -> None:
    (head,) = await provider.launch(SPEC, [HEAD])
    start = ray_start_for(provider.capabilities, SPEC, head, head)
    path = Path(start.env["RAY_AUTH_TOKEN_PATH"])
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() not in json.dumps([start.commands, dict(start.env)])


async def test_a_path_too_long_for_sockets_is_replaced_by_a_short_one(
    tmp_path: Path,
) -> None:
    provider = EmbeddedProvider(tmp_path / ("deep" * 30), SystemClock())
    (instance,) = await provider.launch(SPEC, [HEAD])
    short = Path(instance.tags["ray-directory"])
    assert len(str(short)) < 40
    assert short.is_dir()
    await provider.terminate(SPEC, [instance])
    await until(lambda: not short.exists())


async def test_a_cluster_has_at_most_as_many_instances_as_addresses(
    provider: EmbeddedProvider,
) -> None:
    first = await provider.launch(SPEC, [LaunchRequest("worker", "worker", 253, "t-1")])
    assert len(first) == 253
    second = await provider.launch(SPEC, [LaunchRequest("worker", "worker", 2, "t-2")])
    assert len(second) == 1, "fewer than requested"
    with pytest.raises(CapacityError, match="cannot have more instances"):
        await asyncio.wait_for(
            provider.launch(SPEC, [LaunchRequest("worker", "worker", 1, "t-3")]), 20
        )


@pytest.mark.parametrize("length", range(8, 80))
def test_rays_longest_socket_path_fits_whatever_the_length_of_the_home(length: int) -> None:
    store = InstanceStore(Path("/" + "h" * (length - 1), "e"))
    session = "session_2026-01-01_00-00-00_000000_4194304"
    for name in ("plasma_store", "dash_MetricsHead", "dash_TaskEventsHead"):
        path = f"{store.ray_directory(new_id())}/{session}/sockets/{name}"
        assert len(path) <= 107, path
