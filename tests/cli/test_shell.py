"""The interactive cluster in a terminal, with real Ray: the eight steps by which Ray's first users
started a cluster."""

from __future__ import annotations

import asyncio
import importlib.metadata
import re
import shlex
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.ops.package_index import PackageIndex, fetch_wheels
from tests.polling import until
from tests.simcloud.cloud import SimCloud
from tests.simcloud.console import Running
from tests.simcloud.hosts import Host

pytestmark = [
    pytest.mark.simcloud,
    pytest.mark.ray,
    pytest.mark.long,
    pytest.mark.asyncio(loop_scope="module"),
]

COMMAND = (
    "shoal shell --nodes nodes.txt --key-file .ssh/id_ed25519 --username ubuntu "
    "--installation-directory /home/ubuntu/"
)

FUNCTIONS = """
import socket
import time

def where(seconds=0):
    time.sleep(seconds)
    return socket.gethostname(), {answer}
"""

DRIVER = """
import ray
ray.init("auto", log_to_driver=False)
from example_functions import where
tasks = [ray.remote(where).options(scheduling_strategy="SPREAD").remote(1) for _ in range(6)]
print(sorted(set(ray.get(tasks))), ray.cluster_resources()["CPU"])
"""

BUSY = """
import ray
ray.init("auto")
from example_functions import where
ray.remote(where).remote(99)
print("on", flush=True)
ray.get(ray.remote(where).remote(99))
"""

_ESCAPE_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")


class Prompt:
    """A terminal that shows the Python prompt."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self.screen = ""
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while data := await self._running.stdout.read(65536):
            self.screen += _ESCAPE_CODES.sub("", data.decode(errors="replace"))

    async def ready(self, timeout: float = 60) -> str:
        """The output until the next prompt."""
        await until(lambda: self.screen.endswith(">>> "), timeout=timeout)
        shown, self.screen = self.screen, ""
        return shown

    async def type(self, line: str, timeout: float = 60) -> str:
        self._running.stdin.write(f"{line}\n".encode())
        await until(lambda: "\n" in self.screen, timeout=timeout)
        return await self.ready(timeout)

    async def close(self) -> int:
        self._running.stdin.write(b"\x04")
        return await self._running.wait()


class ShellBed:
    """The laptop, the machines, the package index, and the prompt."""

    def __init__(self, laptop: Host, hosts: list[Host], index: PackageIndex) -> None:
        self.laptop = laptop
        self.hosts = hosts
        self.index = index
        self.prompt: Prompt

    async def write_code(self, answer: int) -> None:
        text = FUNCTIONS.format(answer=answer)
        await self.laptop.run(
            "mkdir -p ~/example_ray_code && cat > ~/example_ray_code/example_functions.py",
            stdin=text,
        )

    async def drive(self, shown: str) -> str:
        """Run a driver on the head with the command in this output."""
        attach = next(line for line in shown.splitlines() if "driver on the head" in line)
        command = attach.split("driver on the head")[1].strip()
        setup = command.partition(";")[0]
        done = await self.hosts[0].run(f"{setup}; python -", stdin=DRIVER, user="ubuntu")
        assert done.code == 0, done.stderr
        return done.stdout


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ShellBed]:
    version = importlib.metadata.version("ray")
    wheels = fetch_wheels(tmp_path_factory.mktemp("wheels"), f"ray[default]=={version}")
    async with SimCloud() as cloud:
        laptop, *hosts = await asyncio.gather(cloud.laptop(), *(cloud.boot() for _ in range(2)))
        index = await PackageIndex.open(cloud)
        index.add(*wheels)
        await index.configure(*hosts)
        # Step 1 is the nodes file. Step 2, a network between the machines, exists already.
        await laptop.run("cat > nodes.txt", stdin="".join(f"{h.address}\n" for h in hosts))
        bed = ShellBed(laptop, hosts, index)
        running = await laptop.popen(["script", "-qfec", COMMAND, "/dev/null"])
        bed.prompt = Prompt(running)
        yield bed
        running.kill()


async def test_step_3_opens_a_prompt_with_help(bed: ShellBed) -> None:
    shown = await bed.prompt.ready()
    assert "<cluster nodes: 2 machines>" in shown
    assert "cluster.install_ray()" in shown
    assert "Traceback" not in shown


async def test_step_4_installs_ray_and_shows_the_output_of_each_node(
    bed: ShellBed,
) -> None:
    shown = await bed.prompt.type("cluster.install_ray()", timeout=240)
    version = importlib.metadata.version("ray")
    assert f"nodes: installed Ray {version} on 2 nodes" in shown, shown
    assert re.search(r"head \| .*Successfully installed", shown)
    assert f"worker-1 | ray version: {version}" in shown
    assert set(bed.index.downloads().values()) == {1}


async def test_step_5_ray_works_on_each_node(bed: ShellBed) -> None:
    for host in bed.hosts:
        command = "source /home/ubuntu/setup-env.sh; ray --version"
        done = await host.run(f"bash -c '{command}'", user="ubuntu")
        assert done.stdout.startswith("ray, version"), done.stderr


async def test_steps_6_and_7_start_ray_with_user_code_on_every_node(bed: ShellBed) -> None:
    await bed.write_code(answer=1)
    call = 'cluster.start_ray("~/example_ray_code", num_workers_per_node=3)'
    shown = await bed.prompt.type(call, timeout=120)
    assert "nodes is ready: 2 nodes" in shown, shown
    printed = await bed.drive(shown)
    for host in bed.hosts:
        assert f"('{host.name}', 1)" in printed
    assert "6.0" in printed


async def test_step_8_workers_are_restarted_with_other_code(bed: ShellBed) -> None:
    await bed.write_code(answer=2)
    call = 'cluster.restart_workers("~/example_ray_code", num_workers_per_node=2)'
    shown = await bed.prompt.type(call, timeout=120)
    assert "nodes is ready: 2 nodes" in shown, shown
    printed = await bed.drive(shown)
    assert f"('{bed.hosts[1].name}', 2)" in printed
    assert "4.0" in printed


async def test_restart_fails_while_tasks_are_running(bed: ShellBed) -> None:
    command = f". /home/ubuntu/setup-env.sh; exec python -c {shlex.quote(BUSY)}"
    running = await bed.hosts[0].popen(["bash", "-c", command], user="ubuntu")
    assert b"on" in await running.stdout.readline()
    call = 'cluster.restart_workers("~/example_ray_code")'
    assert "tasks are running on" in await bed.prompt.type(call, timeout=120)
    running.kill()
    await running.wait()


async def test_an_error_at_the_prompt_has_no_stack_trace(bed: ShellBed) -> None:
    shown = await bed.prompt.type('cluster.start_ray("missing")')
    assert "missing is not a directory" in shown
    assert "Traceback" not in shown
    assert "ZeroDivisionError" in await bed.prompt.type("1 / 0")


async def test_stop_ray_keeps_it_installed(bed: ShellBed) -> None:
    shown = await bed.prompt.type("cluster.stop_ray()", timeout=120)
    assert "stopped Ray on 2 nodes" in shown
    for host in bed.hosts:
        result = await host.run("pgrep -c 'raylet|gcs_server'", user="root")
        assert result.stdout.strip() == "0"
    assert (bed.hosts[1].root() / "home/ubuntu/ray/bin/ray").exists()


async def test_down_releases_the_machines_and_the_prompt_closes(bed: ShellBed) -> None:
    shown = await bed.prompt.type("cluster.down()", timeout=60)
    assert "nodes is terminated" in shown
    assert await bed.prompt.close() == 0
    left = await bed.hosts[1].run("ls -a ~; cat ~/.ssh/authorized_keys", user="ubuntu")
    assert ".shoal" not in left.stdout
    assert "shoal:nodes" not in left.stdout
