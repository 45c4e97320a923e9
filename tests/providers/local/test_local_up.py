"""`shoal up` and `down` on listed hosts, with failures on the way."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from tests.providers.local.ssh_bed import SHOAL, Bed, actions, phases

pytestmark = pytest.mark.simcloud


async def test_all_nodes_come_up_and_a_second_up_changes_nothing(bed: Bed) -> None:
    events = await bed.up()
    assert actions(events) == [("use", "1 x local.cluster.node"), ("use", "2 x local.cluster.node")]
    assert events[-1]["event"] == "ready" and events[-1]["nodes"] == 3
    for node in ("head", "worker-1", "worker-2"):
        assert phases(events, node)[-1] == "ready"
    again = await bed.up()
    assert again[-1]["event"] == "unchanged"


async def test_new_login_shells_are_for_the_commands_of_the_user(bed: Bed) -> None:
    worker = bed.workers[0]
    (await worker.run("echo 'echo x >> ~/shells' > ~/.bashrc", user="ubuntu")).require("dotfile")
    await bed.write(setup_commands=["true", "true"])
    await bed.up()
    shells = int(await bed.read(worker, "wc -l < ~/shells"))
    # Two setup commands and a start command, and for each the shell of sshd and a login shell; one
    # for rsync; and those that Shoal's own steps share.
    assert shells <= 3 * 2 + 1 + 3


@pytest.mark.long
async def test_an_unreachable_worker_is_named_and_the_next_up_adds_only_it(bed: Bed) -> None:
    lost = bed.workers[1]
    await lost.power_off()
    await bed.write(shoal={"reach_timeout_s": 15})
    done = await bed.shoal("up c.yaml --yes", timeout=150)
    assert done.code == 4
    assert "1 of 3 nodes did not come up: worker-2" in done.stderr
    assert "retry only these nodes: shoal up" in done.stderr
    await lost.boot()
    events = await bed.up()
    assert actions(events) == [("use", "1 x local.cluster.node")]
    assert {e["node"] for e in events if e["event"] == "node"} == {"worker-2"}


async def test_up_waits_for_ssh_that_is_refused_for_a_while(bed: Bed) -> None:
    await bed.workers[0].deny_ssh(10)
    events = await bed.up()
    assert events[-1]["nodes"] == 3


@pytest.mark.long
async def test_a_setup_command_that_fails_once_is_retried(bed: Bed) -> None:
    flaky = "test -e ~/tried || { touch ~/tried; echo not yet; exit 1; }"
    await bed.write(setup_commands=[flaky])
    events = await bed.up()
    assert events[-1]["event"] == "ready"


async def test_a_setup_command_that_always_fails_affects_only_its_node(bed: Bed) -> None:
    picky = 'echo "checking $HOSTNAME"; test "$HOSTNAME" != "$(cat ~/unlucky 2>/dev/null)"'
    await bed.workers[0].run("hostname > ~ubuntu/unlucky")
    await bed.write(setup_commands=["true", picky])
    done = await bed.shoal("up c.yaml --yes")
    assert done.code == 4
    assert "worker-1: setup command 2 of 2 failed with exit code 1" in done.stderr
    assert f"| checking {bed.workers[0].name}" in done.stderr
    await bed.workers[0].run("rm ~ubuntu/unlucky")
    events = await bed.up()
    assert actions(events) == [("start", "worker-1")]


async def test_a_setup_command_that_hangs_is_killed_at_its_deadline(bed: Bed) -> None:
    await bed.write(setup_commands=["sleep 1000"], shoal={"command_timeout_s": 2})
    done = await bed.shoal("up c.yaml --yes")
    assert done.code == 4
    assert "setup command 1 of 1 timed out after 2 s" in done.stderr
    assert "command_timeout_s" in done.stderr
    assert await bed.read(bed.head, "pgrep -c -x sleep || true") == "0"


@pytest.mark.parametrize(
    "phase",
    [
        "preparing",
        *(
            pytest.param(phase, marks=pytest.mark.long)
            for phase in ("booting", "reachable", "starting", "ready")
        ),
    ],
)
async def test_up_finishes_what_an_up_killed_at_any_phase_began(bed: Bed, phase: str) -> None:
    await bed.write(setup_commands=["sleep 0.5"])
    laptop = await bed.laptop.popen(f"exec {SHOAL} up c.yaml --yes --json")
    async for line in laptop.stdout:
        event = json.loads(line)
        if event["event"] == "node" and event["phase"] == phase:
            break
    laptop.send_signal(signal.SIGKILL)
    await laptop.wait()
    events = await bed.up()
    assert events[-1]["event"] in ("ready", "unchanged")
    done = await bed.shoal("down c.yaml --yes")
    assert done.code == 0, done.stderr
    await _assert_clean(bed)


async def test_down_from_another_laptop_cleans_up_after_a_killed_up(bed: Bed) -> None:
    laptop = await bed.laptop.popen(f"exec {SHOAL} up c.yaml --yes --json")
    async for line in laptop.stdout:
        if '"starting"' in line.decode():
            break
    laptop.send_signal(signal.SIGKILL)
    await laptop.wait()
    elsewhere = f"SHOAL_HOME=~/elsewhere {SHOAL} down c.yaml --yes"
    done = await bed.laptop.run(elsewhere, timeout=60)
    assert done.code == 0, done.stderr
    await _assert_clean(bed)


async def test_down_leaves_the_hosts_as_they_were(bed: Bed) -> None:
    before = await asyncio.gather(*(bed.read(h, "cat ~/.ssh/authorized_keys") for h in bed.hosts))
    await bed.up()
    done = await bed.shoal("down c.yaml --yes")
    assert done.code == 0, done.stderr
    await _assert_clean(bed)
    after = await asyncio.gather(*(bed.read(h, "cat ~/.ssh/authorized_keys") for h in bed.hosts))
    assert after == before


@pytest.mark.long
async def test_down_names_an_unreachable_host_and_finishes_later(bed: Bed) -> None:
    keys = "cat ~/.ssh/authorized_keys"
    before = await asyncio.gather(*(bed.read(h, keys) for h in bed.hosts))
    await bed.up()
    lost = bed.workers[0]
    await lost.cut()
    done = await bed.shoal("down c.yaml --yes")
    assert done.code == 4
    assert f"worker-1 ({lost.address})" in done.stderr
    await lost.heal()
    done = await bed.shoal("down c.yaml --yes")
    assert done.code == 0, done.stderr
    await _assert_clean(bed)
    assert await asyncio.gather(*(bed.read(h, keys) for h in bed.hosts)) == before


async def test_up_restarts_ray_on_a_rebooted_host(bed: Bed) -> None:
    await bed.up()
    await bed.workers[0].reboot()
    events = await bed.up()
    assert actions(events) == [("start", "worker-1")]
    assert "preparing" not in phases(events, "worker-1")[:1]


async def test_a_host_of_another_cluster_is_refused_unless_forced(bed: Bed) -> None:
    await bed.up()
    shared = bed.workers[0]
    other = await bed.cloud.boot()
    provider = {"type": "local", "head_ip": other.address, "worker_ips": [shared.address]}
    await bed.write("other.yaml", cluster_name="other", provider=provider)
    done = await bed.shoal("up other.yaml --yes")
    assert done.code == 4
    assert f"the host belongs to cluster mine@{bed.head.address}" in done.stderr
    assert "--force" in done.stderr
    leftovers = "pgrep -x raylet; cat ~/.shoal/auth_token"
    before = (await bed.read(shared, leftovers)).splitlines()
    done = await bed.shoal("up other.yaml --yes --force")
    assert done.code == 0, done.stderr
    after = (await bed.read(shared, leftovers)).splitlines()
    assert len(after) == 2 and not set(before) & set(after), "nothing is left of the other cluster"
    assert (await bed.read(shared, "cat /var/tmp/shoal-owner")).startswith("other@")


async def test_a_changed_host_key_is_refused_with_the_fix(bed: Bed) -> None:
    await bed.up()
    address = bed.workers[0].address
    await bed.cloud.destroy(bed.workers[0])
    bed.hosts[1] = await bed.cloud.boot(address)
    done = await bed.shoal("up c.yaml --yes")
    assert done.code != 0
    assert "host key" in done.stderr
    fix = next(line for line in done.stderr.splitlines() if line.startswith("  fix:"))
    forget = fix.partition("was reinstalled: ")[2]
    (await bed.laptop.run(forget)).require("applying the fix")
    events = await bed.up()
    assert events[-1]["event"] == "ready"


async def test_workers_behind_the_head_are_reached_through_it(bed: Bed) -> None:
    for worker in bed.workers:
        await bed.laptop.run(f"ip route add blackhole {worker.address}/32", user="root")
    await bed.write(shoal={"via_head": True})
    events = await bed.up()
    assert events[-1]["nodes"] == 3
    keys = await bed.read(bed.head, "ls ~/.ssh")
    assert "id_" not in keys


async def _assert_clean(bed: Bed) -> None:
    for host in bed.hosts:
        left = await bed.read(
            host,
            "ls -d ~/.shoal /var/tmp/shoal-owner 2>/dev/null; pgrep -x 'raylet|gcs_server'; true",
        )
        assert left == "", f"{host.name}: {left}"
