"""Nodes in containers, on two hosts with docker: one cluster for all tests."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.bootstrap.containers.container_bed import DOCKER, SharedCluster, container_bed
from tests.bootstrap.containers.container_runtimes import HOME, USER_ID
from tests.polling import until
from tests.providers.local.ssh_bed import Bed, actions
from tests.simcloud.hosts import Host

pytestmark = [pytest.mark.simcloud, pytest.mark.asyncio(loop_scope="module")]

# Everything that a shell could interpret, and that must arrive unchanged.
AWKWARD = "two  spaces 'single' \"double\" $(id) `id` $HOME \\ * ünïcödé ; & | < > #"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[SharedCluster]:
    async with container_bed(
        initialization_commands=["id -un > ~/initialized"],
        setup_commands=["id -un >> ~/set_up; test -s ~/code/hello.txt"],
        head_setup_commands=["mkdir -p ~/made && echo here > ~/made/by-head"],
        file_mounts={"~/code": "code", "/opt/shared/one.txt": "code/hello.txt"},
        cluster_synced_files=["~/made"],
    ) as bed:
        await bed.laptop.run("mkdir code; echo hello > code/hello.txt")
        yield SharedCluster(bed, dict(bed.settings))


@pytest_asyncio.fixture(loop_scope="module")
async def bed(cluster: SharedCluster) -> Bed:
    """The cluster with its original settings."""
    return await cluster.restore()


@pytest_asyncio.fixture(loop_scope="module")
async def changing_bed(cluster: SharedCluster) -> Bed:
    """The cluster, for a test that changes its settings or its hosts."""
    bed = await cluster.restore()
    cluster.is_original = False
    return bed


async def inside(bed: Bed, host: Host, command: str) -> str:
    """The output of a command in the container of a host."""
    return await bed.read(host, f"docker exec ray_box {command}")


async def container_id(bed: Bed, host: Host) -> str:
    return await bed.read(host, "docker ps -aq --no-trunc --filter name=ray_box")


async def test_each_role_has_its_image_and_its_commands_run_there(bed: Bed) -> None:
    assert await bed.read(bed.head, "cat initialized; ls set_up 2>/dev/null || true") == "ubuntu"
    assert await inside(bed, bed.head, f"cat {HOME}/set_up") == "ray"
    assert await inside(bed, bed.workers[0], "cat /root/set_up") == "root"
    image = "docker inspect -f {{.Config.Image}} ray_box"
    assert [await bed.read(host, image) for host in bed.hosts] == ["gpu:1", "cpu:1"]


async def test_files_belong_to_the_images_user(bed: Bed) -> None:
    for host, home, owner in ((bed.head, HOME, USER_ID), (bed.workers[0], "/root", 0)):
        stat = f"stat -c '%u %a' {home}/code/hello.txt"
        assert await inside(bed, host, stat) == f"{owner} 644"
        assert await inside(bed, host, "stat -c %u /opt/shared/one.txt") == str(owner)


async def test_files_created_on_the_head_reach_the_workers_containers(bed: Bed) -> None:
    assert await inside(bed, bed.workers[0], "cat /root/made/by-head") == "here"


async def test_shared_memory_size_follows_the_hosts_memory(bed: Bed) -> None:
    size = int(await bed.read(bed.head, "docker inspect -f {{.HostConfig.ShmSize}} ray_box"))
    free_kib = int(await bed.read(bed.head, "awk '/MemAvailable/ { print $2 }' /proc/meminfo"))
    # Free memory has changed since: other tests start Ray at the same time.
    assert 0.25 < size / (free_kib * 1024 * 0.33) < 4


async def test_lease_agent_runs_on_the_host(bed: Bed) -> None:
    for host in (bed.head, *bed.workers):
        assert await bed.read(host, "pgrep -u ubuntu -f 'running [l]ease.lock'")
        assert await bed.read(host, "ls .shoal/lease.lock")


async def test_command_arrives_unchanged(bed: Bed) -> None:
    command = f"printf '%s\\n' {shlex.quote(AWKWARD)} {shlex.quote('a' + chr(10) + 'b')}"
    done = await bed.shoal(f"exec c.yaml {shlex.quote(command)}")
    assert done.stdout == f"{AWKWARD}\na\nb\n"
    lines = await bed.shoal(f"exec c.yaml --json {shlex.quote(command)}")
    printed = [json.loads(line)["line"] for line in lines.stdout.splitlines()]
    assert printed == [AWKWARD, "a", "b"]


async def test_exec_runs_inside_or_with_run_env_host_on_the_host(bed: Bed) -> None:
    done = await bed.shoal("exec c.yaml 'id -un; pwd; echo $RAY_ADDRESS; exit 7'")
    assert (done.code, done.stdout) == (7, f"ray\n{HOME}\n{bed.head.address}:6379\n")
    done = await bed.shoal("exec c.yaml --run-env host 'id -un; pwd; exit 8'")
    assert (done.code, done.stdout) == (8, "ubuntu\n/home/ubuntu\n")


async def test_submit_and_rsync_work_inside_or_with_run_env_host_on_the_host(bed: Bed) -> None:
    await bed.laptop.run("echo 'import os, sys; print(os.getuid(), sys.argv[1:])' > s.py")
    done = await bed.shoal("submit c.yaml s.py -- 'a b' c")
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{USER_ID} ['a b', 'c']", done.stderr
    done = await bed.shoal("submit c.yaml --run-env host s.py")
    assert done.stdout.splitlines()[-1] == "1000 []", done.stderr

    await bed.laptop.run("mkdir 'a dir'; echo up > 'a dir/f $x'")
    assert (await bed.shoal("rsync-up c.yaml 'a dir' /tmp/there")).code == 0
    assert await inside(bed, bed.head, "cat '/tmp/there/a dir/f $x'") == "up"
    assert (await bed.shoal("rsync-up -A --run-env host c.yaml 'a dir' there")).code == 0
    assert await bed.read(bed.workers[0], "cat 'there/a dir/f $x'") == "up"
    await inside(bed, bed.head, "sh -c 'echo down > /tmp/there/g'")
    assert (await bed.shoal("rsync-down c.yaml /tmp/there/ back")).code == 0
    assert (await bed.laptop.run("cat back/g 'back/a dir/f $x'")).stdout == "down\nup\n"
    assert (await bed.shoal("rsync-down c.yaml --run-env host initialized .")).code == 0
    assert (await bed.laptop.run("cat initialized")).stdout == "ubuntu\n"


async def test_port_forward_reaches_the_container(bed: Bed) -> None:
    serve = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8123)"
    server = await bed.laptop.popen(f"exec shoal exec c.yaml -p 8123 \"python -c '{serve}'\"")

    async def answers() -> bool:
        page = await bed.laptop.run("curl -s http://127.0.0.1:8123/code/hello.txt")
        return page.stdout == "hello\n"

    await until(answers, "the port is open", timeout=90, every=0.5)
    server.send_signal(signal.SIGINT)
    assert (await server.finish()).code == 130
    assert await inside(bed, bed.head, "sh -c 'pgrep -f [S]impleHTTP || true'") == ""


async def test_terminal_is_inside_and_losing_it_ends_its_processes(bed: Bed) -> None:
    typed = "echo am:$(id -un) on:$(tty) as:$TERM; exit 5\n"
    shell = "TERM=vt100 script -qec 'shoal attach c.yaml' /dev/null"
    done = await bed.laptop.run(shell, stdin=typed)
    assert done.code == 5
    assert "am:ray on:/dev/pts/" in done.stdout and "as:vt100" in done.stdout

    lost = await bed.laptop.popen("exec script -qec \"shoal exec c.yaml 'sleep 4321'\" /dev/null")

    async def sleeps() -> bool:
        return await inside(bed, bed.head, "sh -c 'pgrep -f [s]leep.4321 || true'") != ""

    async def ended() -> bool:
        return not await sleeps()

    await until(sleeps, "the command runs", timeout=90, every=0.5)
    await bed.laptop.run("pkill -KILL ssh")
    await until(ended, "the processes of the lost terminal have ended", timeout=90, every=0.5)
    await lost.finish()


async def test_second_up_leaves_the_containers_alone(bed: Bed) -> None:
    before = [await container_id(bed, host) for host in bed.hosts]
    assert actions(await bed.up()) == []
    assert [await container_id(bed, host) for host in bed.hosts] == before


async def test_stopped_container_is_restarted_with_its_content(bed: Bed) -> None:
    worker = bed.workers[0]
    before = await container_id(bed, worker)
    await bed.read(worker, "docker kill ray_box")
    assert actions(await bed.up()) == [("start", "worker-1")]
    assert await container_id(bed, worker) == before
    assert await inside(bed, worker, "cat /root/set_up") == "root"  # once, and not again


async def test_stop_and_start_keep_the_containers(bed: Bed) -> None:
    before = [await container_id(bed, host) for host in bed.hosts]
    assert (await bed.shoal("stop c.yaml --yes")).code == 0
    assert await inside(bed, bed.head, "sh -c 'pgrep raylet || true'") == ""
    await bed.read(bed.head, "docker kill ray_box")
    assert (await bed.shoal("start c.yaml")).code == 0
    assert await inside(bed, bed.head, "sh -c 'pgrep raylet | wc -l'") == "1"
    assert [await container_id(bed, host) for host in bed.hosts] == before


async def test_container_is_replaced_when_its_settings_change(changing_bed: Bed) -> None:
    bed = changing_bed
    before = [await container_id(bed, host) for host in bed.hosts]
    changed = {**DOCKER, "worker_run_options": ["--env=WHERE='two words'"]}
    await bed.write(docker=changed)
    assert actions(await bed.up("--no-restart")) == []
    await bed.up("--restart-only")
    assert [await container_id(bed, host) for host in bed.hosts] == before
    assert actions(await bed.up()) == [("restart", "worker-1")]
    head, worker = [await container_id(bed, host) for host in bed.hosts]
    assert head == before[0] and worker != before[1]
    assert await inside(bed, bed.workers[0], "printenv WHERE") == "two words"
    assert await inside(bed, bed.workers[0], "cat /root/set_up /root/code/hello.txt") == (
        "root\nhello"
    )


async def test_cluster_moves_out_of_its_containers_and_back(changing_bed: Bed) -> None:
    bed = changing_bed
    original_mounts = bed.settings["file_mounts"]
    await bed.write(docker={}, file_mounts={"~/code": "code"})
    await bed.up()
    for host in bed.hosts:
        assert await container_id(bed, host) == ""
        assert await bed.read(host, "cat set_up; pgrep -c raylet") == "ubuntu\n1"
    await bed.write(docker=DOCKER, file_mounts=original_mounts)
    await bed.up()
    for host in bed.hosts:
        assert await inside(bed, host, "pgrep -c raylet") == "1"
        assert await bed.read(host, "pgrep -cu ubuntu raylet || true") == "0"
        await bed.read(host, "rm -rf set_up code made")


async def test_down_removes_the_containers_and_leaves_the_images(changing_bed: Bed) -> None:
    bed = changing_bed
    await bed.write(docker={})  # even if the file no longer has a docker section
    done = await bed.shoal("down c.yaml --yes")
    assert done.code == 0, done.stderr
    for host in bed.hosts:
        assert await bed.read(host, "docker ps -aq; ls -d .shoal || true") == ""
        assert await bed.read(host, "docker images -q | wc -l") == "2"


async def test_a_dotfile_may_change_the_directory(changing_bed: Bed) -> None:
    bed = changing_bed
    for host in bed.hosts:
        await bed.read(host, "cp ~/.bashrc ~/bashrc && echo cd /var >> ~/.bashrc")
    try:
        assert actions(await bed.up()) == [], "what is there is found"
        await bed.laptop.run("echo '# changed' >> code/hello.txt")
        await bed.up()
        assert (await bed.shoal("exec c.yaml 'cat ~/code/hello.txt'")).code == 0
        assert (await bed.shoal("down c.yaml --yes")).code == 0
        for host in bed.hosts:
            assert await container_id(bed, host) == ""
            assert await bed.read(host, "ls -d ~/.shoal /var/.shoal 2>/dev/null; true") == ""
        await bed.up()
    finally:
        for host in bed.hosts:
            await bed.read(host, "mv ~/bashrc ~/.bashrc")
