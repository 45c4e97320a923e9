"""Hosts behave like machines: addresses, SSH, users, names, disks and process trees."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.polling import until
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import BootFailed, Host
from tests.simcloud.keys import new_key
from tests.simcloud.processes import execute

pytestmark = pytest.mark.simcloud

PINNED = ["-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes"]


async def pin(laptop: Host, *hosts: Host) -> None:
    lines = "".join(f"{host.address} {host.machine.host_key.public}\n" for host in hosts)
    result = await laptop.run("cat >> ~/.ssh/known_hosts", stdin=lines)
    result.require("writing known_hosts")


async def test_a_host_boots_in_under_300_ms(cloud: SimCloud) -> None:
    """Or in the time of a few bare Python starts, where the computer is busy with other things."""
    times = []
    for _ in range(10):
        began = time.monotonic()
        await execute([sys.executable, "-S", "-E", "-c", ""])
        started = time.monotonic()
        await cloud.boot()
        times.append(time.monotonic() - started)
        if times[-1] < max(0.3, 10 * (started - began)):
            return
    pytest.fail(f"seconds to boot: {times}")


async def test_32_hosts_boot_at_once_and_know_each_other_by_name(cloud: SimCloud) -> None:
    hosts = await asyncio.gather(*(cloud.boot() for _ in range(32)))
    assert len({host.address for host in hosts}) == 32
    names = " ".join(host.name for host in hosts)
    for asked in (hosts[0], hosts[-1]):
        result = await asked.run(f"for n in {names}; do getent hosts $n; done")
        assert [line.split()[0] for line in result.stdout.splitlines()] == [
            host.address for host in hosts
        ]


async def test_the_laptop_reaches_a_host_over_ssh_with_its_host_key_pinned(
    cloud: SimCloud, laptop: Host
) -> None:
    host = await cloud.boot(name="mill")
    await pin(laptop, host)
    result = await laptop.run(["ssh", *PINNED, f"ubuntu@{host.address}", "hostname; id -un; pwd"])
    assert result.stdout.split() == ["mill", "ubuntu", "/home/ubuntu"], result.stderr


async def test_a_host_with_another_host_key_is_not_taken_for_the_pinned_one(
    cloud: SimCloud, laptop: Host
) -> None:
    first, second = await cloud.boot(), await cloud.boot()
    await pin(laptop, first)
    swapped = f"HostKeyAlias={first.address}"
    result = await laptop.run(["ssh", *PINNED, "-o", swapped, f"ubuntu@{second.address}", "true"])
    assert result.code == 255
    assert "verification failed" in result.stderr


async def test_only_an_authorized_key_opens_a_host(cloud: SimCloud, laptop: Host) -> None:
    host = await cloud.boot(authorized_keys=[new_key("stranger").public])
    await pin(laptop, host)
    result = await laptop.run(["ssh", *PINNED, f"ubuntu@{host.address}", "true"])
    assert result.code == 255
    assert "Permission denied" in result.stderr


async def test_root_is_reached_by_ssh_and_by_sudo_without_a_password(
    cloud: SimCloud, laptop: Host
) -> None:
    host = await cloud.boot()
    await pin(laptop, host)
    as_root = await laptop.run(["ssh", *PINNED, f"root@{host.address}", "id -un"])
    by_sudo = await laptop.run(["ssh", *PINNED, f"ubuntu@{host.address}", "sudo -n id -un"])
    assert (as_root.stdout, by_sudo.stdout) == ("root\n", "root\n")


async def test_rsync_carries_files_to_a_host_and_not_to_its_neighbour(
    cloud: SimCloud, laptop: Host
) -> None:
    host, neighbour = await asyncio.gather(cloud.boot(), cloud.boot())
    await pin(laptop, host)
    await laptop.run("mkdir -p tree/deep && echo hello > tree/deep/file")
    sent = await laptop.run(["rsync", "-a", "tree/", f"ubuntu@{host.address}:tree/"])
    assert sent.code == 0, sent.stderr
    assert (await host.run("cat /home/ubuntu/tree/deep/file")).stdout == "hello\n"
    assert (await neighbour.run("ls /home/ubuntu/tree")).code != 0


async def test_the_laptop_has_no_way_out(laptop: Host) -> None:
    script = "import socket; socket.create_connection(('8.8.8.8', 53), timeout=5)"
    result = await laptop.run(["python", "-c", script])
    assert "Network is unreachable" in result.stderr


async def test_a_host_sees_its_own_processes_only(cloud: SimCloud) -> None:
    host, neighbour = await asyncio.gather(cloud.boot(), cloud.boot())
    running = await host.popen(["sleep", "4321"])
    await until(
        lambda: any("4321" in _command(pid) for pid in host.pids()), "the command shows in pids()"
    )
    assert "4321" in (await host.run("ps -e -o args")).stdout
    assert "4321" not in (await neighbour.run("ps -e -o args")).stdout
    running.kill()
    await running.wait()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


async def test_what_a_host_writes_stays_on_its_own_disk(cloud: SimCloud) -> None:
    host = await cloud.boot()
    places = [Path(top, "simcloud-was-here") for top in ("/etc", "/tmp", "/opt", "/root")]
    for place in places:
        assert (await host.run(["touch", str(place)])).code == 0
    assert not any(map(Path.exists, places))


async def test_an_image_is_laid_over_the_computers_own_root(
    cloud: SimCloud, tmp_path: Path
) -> None:
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt" / "flavour").write_text("vanilla\n")
    host = await cloud.boot(image=tmp_path)
    assert (await host.run("cat /opt/flavour; test -x /bin/bash")).stdout == "vanilla\n"


async def test_a_host_that_cannot_boot_says_why(cloud: SimCloud, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("not a passwd file\n")
    with pytest.raises(BootFailed, match="did not boot: list index out of range"):
        await cloud.boot(image=tmp_path)


async def test_the_python_that_runs_the_tests_serves_the_hosts_user(cloud: SimCloud) -> None:
    host = await cloud.boot()
    result = await host.run(
        "python -c 'import pytest, shoal; print(shoal.__name__)'", user="ubuntu"
    )
    assert result.stdout == "shoal\n", result.stderr


async def test_the_hosts_user_may_add_to_its_python(cloud: SimCloud) -> None:
    host = await cloud.boot()
    where = "$(python -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))')"
    added = await host.run(f'echo "x = 7" > "{where}"/added_here.py', user="ubuntu")
    assert added.code == 0, added.stderr
    result = await host.run(["python", "-c", "import added_here; print(added_here.x)"])
    assert result.stdout == "7\n"
    assert importlib.util.find_spec("added_here") is None, "only that machine has it"


async def test_a_reboot_ends_processes_and_keeps_the_disk(cloud: SimCloud) -> None:
    host = await cloud.boot()
    await host.run("echo kept > /root/note; setsid sleep 4321 >/dev/null 2>&1 &")
    await host.reboot()
    result = await host.run("cat /root/note; ps -e -o args")
    assert "kept" in result.stdout
    assert "4321" not in result.stdout


async def test_a_host_that_shuts_itself_down_says_so(cloud: SimCloud) -> None:
    host = await cloud.boot()
    ended: list[str] = []
    host.on_ended = ended.append
    await host.run("sudo shutdown -h now", user="ubuntu")
    await until(lambda: ended, "the machine went down")
    assert ended == ["poweroff"]
    assert not host.running


async def test_code_in_the_test_process_can_be_put_on_the_laptops_network(
    cloud: SimCloud, laptop: Host
) -> None:
    host = await cloud.boot()
    home = network_of_this_thread()
    with laptop.network():
        reader, writer = await asyncio.open_connection(host.address, 22)
    assert (await reader.readline()).startswith(b"SSH-2.0")
    writer.close()
    assert network_of_this_thread() == home


def network_of_this_thread() -> Path:
    return Path("/proc/thread-self/ns/net").readlink()


async def test_a_signal_reaches_the_command_itself(laptop: Host) -> None:
    running = await laptop.popen(
        "trap 'echo interrupted; exit 3' INT; echo ready; while :; do sleep 0.05; done"
    )
    assert await running.stdout.readline() == b"ready\n"
    running.send_signal(signal.SIGINT)
    result = await running.finish()
    assert (result.code, result.stdout) == (3, "interrupted\n")
