"""A cluster for one command: `--start` brings it up, `--stop` takes it down."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator

import pytest

from tests.providers.local.ssh_bed import QUICK_START, SHOAL, Bed

pytestmark = pytest.mark.simcloud

# A `ray` that starts the stand-in for Ray. Its first lines name the interpreter in the form that
# pip uses for a path with a space.
QUICK_RAY = f"""#!/bin/sh
'''exec' "{sys.executable}" "$0" "$@"
' '''
import os, sys
if sys.argv[1] == "start":
    for command in {QUICK_START["head_start_ray_commands"]!r}:
        os.system(command)
"""
OWNER = "cat /var/tmp/shoal-owner 2>/dev/null || true"


async def owners(bed: Bed) -> list[str]:
    return [await bed.read(host, OWNER) for host in bed.hosts]


async def test_a_failing_command_takes_its_cluster_down(bed: Bed) -> None:
    done = await bed.shoal("exec c.yaml 'echo ran; exit 7' --start --stop -n trial")
    assert (done.code, done.stdout) == (7, "ran\n"), done.stderr
    assert "trial is ready: 3 nodes" in done.stderr
    assert "trial is terminated: 3 nodes" in done.stderr
    assert await owners(bed) == ["", "", ""]


async def test_start_does_not_change_a_cluster_that_is_up(bed: Bed) -> None:
    await bed.up()
    before = await bed.read(bed.head, "pgrep -x raylet")
    done = await bed.shoal("exec c.yaml 'echo ran' --start")
    assert (done.code, done.stdout, done.stderr) == (0, "ran\n", "")
    assert await bed.read(bed.head, "pgrep -x raylet") == before


@pytest.fixture
def default_sighup() -> Iterator[None]:
    """SIGHUP ends processes, even if the tests run under nohup."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_an_interrupted_command_takes_its_cluster_down(
    bed: Bed, signum: signal.Signals, default_sighup: None
) -> None:
    await bed.up()
    running = await bed.laptop.popen([SHOAL, "exec", "mine", "echo begun; sleep 4712", "--stop"])
    assert await running.stdout.readline() == b"begun\n"
    running.send_signal(signum)
    assert await running.wait() in (130, 128 + signum)
    assert await owners(bed) == ["", "", ""]
    assert (await bed.head.run("pgrep -f 'sleep 4712'")).code == 1


async def test_an_interrupted_start_is_undone_with_stop(bed: Bed) -> None:
    await bed.write(setup_commands=["echo $PWD; touch ~/begun; sleep 4713"])
    command = [SHOAL, "exec", "c.yaml", "true", "--start", "--stop", "-v"]
    running = await bed.laptop.popen(command)
    await running.stderr.readuntil(b"| /home/ubuntu")
    running.send_signal(signal.SIGINT)
    assert await running.wait() == 130
    assert await owners(bed) == ["", "", ""]


@pytest.mark.long
async def test_a_nodes_file_makes_a_cluster_that_is_known_by_name(bed: Bed) -> None:
    """Such hosts must have Ray installed, because a list has no setup commands."""
    ray = shlex.quote(f"{sys.prefix}/bin/ray")
    (await bed.head.run(f"cat > {ray}", stdin=QUICK_RAY)).require("replacing its Ray")
    head = bed.head.address
    await bed.laptop.run("mkdir -p keys && cp ~/.ssh/id_ed25519 'keys/my key.pem'")
    await bed.laptop.run("cat > lab.txt", stdin=f"# the lab\n{head}  # head\n")
    options = "--nodes lab.txt --key-file 'keys/my key.pem' --username ubuntu"
    done = await bed.shoal(f"up {options}")
    assert done.code == 0, done.stderr
    assert "lab is ready: 1 node" in done.stderr
    await bed.laptop.run("mv ~/.ssh/id_ed25519 ~/.ssh/elsewhere; mkdir -p other")
    there = await bed.laptop.run(f"cd other && {SHOAL} get-head-ip lab")
    assert there.stdout == f"{head}\n", there.stderr
    assert (await bed.shoal(f"exec {options} 'exit 3'")).code == 3
    again = await bed.shoal(f"up {options}")
    assert "nothing to do" in again.stderr
    assert (await bed.shoal("down lab --yes")).code == 0
    assert await owners(bed) == ["", "", ""]
