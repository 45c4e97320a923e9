"""Hosts behind slow links and jump hosts, with unusual mounts, and logins by an agent only."""

from __future__ import annotations

import pytest

from tests.polling import until
from tests.providers.local.ssh_bed import Bed

pytestmark = pytest.mark.simcloud


async def test_a_link_with_latency_and_loss(bed: Bed) -> None:
    for host in bed.hosts:
        await host.delay(80)
        await host.lose_packets(3)
    events = await bed.up()
    assert events[-1]["nodes"] == 3


async def test_a_tmp_without_programs(bed: Bed) -> None:
    for host in bed.hosts:
        mount = "mount -t tmpfs -o noexec,nosuid,nodev,mode=1777 tmpfs /tmp"
        (await host.run(mount, user="root")).require(mount)
    events = await bed.up()
    assert events[-1]["nodes"] == 3
    done = await bed.shoal("exec c.yaml 'echo $HOME'")
    assert done.stdout.strip() == "/home/ubuntu", done.stderr


async def test_a_disk_that_is_too_small_for_the_files_is_the_cause_of_the_error(bed: Bed) -> None:
    bed.hosts = [bed.hosts[0], await bed.cloud.boot(disk_mib=16)]
    await bed.laptop.run("mkdir data && head -c 40M /dev/urandom > data/large")
    await bed.write(file_mounts={"~/data": "data"})
    done = await bed.shoal("up c.yaml --yes")
    assert done.code == 4, done.stderr
    assert "No space left on device" in done.stderr
    assert f"ubuntu@{bed.workers[0].address} 'df -h'" in done.stderr


async def test_a_jump_host_of_the_users_ssh_configuration(bed: Bed) -> None:
    jump = await bed.cloud.boot()
    config = (
        f"Host {jump.address}\n  User ubuntu\n  StrictHostKeyChecking accept-new\n"
        f"Host {' '.join(host.address for host in bed.hosts)}\n  ProxyJump {jump.address}\n"
    )
    await bed.laptop.run("cat > ~/.ssh/config && chmod 600 ~/.ssh/config", stdin=config)
    for host in bed.hosts:
        await bed.laptop.run(f"ip route add blackhole {host.address}/32", user="root")
    events = await bed.up()
    assert events[-1]["nodes"] == 3


async def test_a_key_that_is_in_an_agent_only(bed: Bed) -> None:
    agent = await bed.laptop.popen("exec ssh-agent -D -a ~/agent")
    socket = bed.laptop.root() / "home/me/agent"
    env = {"SSH_AUTH_SOCK": "/home/me/agent"}
    add = "until [ -S ~/agent ]; do :; done; ssh-add ~/.ssh/id_ed25519 && rm ~/.ssh/id_ed25519*"
    (await bed.laptop.run(add, env=env)).require("moving the key to the agent")
    assert socket.exists()
    done = await bed.laptop.run("shoal up c.yaml --yes", env=env, timeout=300)
    assert done.code == 0, done.stderr
    done = await bed.laptop.run("shoal down c.yaml --yes", env=env, timeout=300)
    assert done.code == 0, done.stderr
    await bed.laptop.run("pkill -x ssh-agent")
    await agent.finish(timeout=30)


async def test_an_sshd_that_is_down_for_a_while_in_the_middle_of_up(bed: Bed) -> None:
    """The connection breaks during the first setup command, and sshd comes back after `up` has
    tried in vain to connect again."""
    restart = "pkill -x sshd; until [ -e /tmp/again ]; do sleep 0.1; done; /usr/sbin/sshd"
    first = f"[ -e ~/broken ] || {{ touch ~/broken; sudo setsid -f sh -c '{restart}'; sleep 300; }}"
    await bed.write(head_setup_commands=[first, "echo second >> ~/second"])
    log = bed.laptop.root() / "home/me/up.log"
    running = await bed.laptop.popen("exec shoal up c.yaml --yes -v > up.log 2>&1")
    refused = "the connection was refused"
    await until(lambda: log.exists() and refused in log.read_text(), "a retry", timeout=120)
    (bed.head.root() / "tmp/again").touch()
    done = await running.finish(timeout=120)
    assert done.code == 0, log.read_text()
    assert "is ready: 3 nodes" in log.read_text()
    assert await bed.read(bed.head, "cat ~/second") == "second"
