"""The everyday commands, over SSH on a cluster of three hosts with real Ray. All tests share one
cluster, and each leaves it up."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.polling import until
from tests.providers.local.ssh_bed import SHOAL, USE_OUR_RAY, Bed
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host

pytestmark = [
    pytest.mark.simcloud,
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="module"),
]

# No shell on the way may interpret any of this.
AWKWARD = 'it\'s "q" $(id) `id` $HOME ~ * \\ ; & | é\nline two'

SCRIPT = """
import json, ray, sys
ray.init(log_to_driver=False)

@ray.remote
def answer():
    return 42

print(json.dumps([ray.get(answer.remote()), *sys.argv]))
sys.exit(9)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed() -> AsyncIterator[Bed]:
    async with SimCloud() as cloud:
        laptop, *hosts = await asyncio.gather(cloud.laptop(), *(cloud.boot() for _ in range(3)))
        bed = Bed(cloud, laptop, hosts)
        await laptop.run(
            "mkdir -p 'code dir/sub' && echo 1 > 'code dir/sub/a' && touch skipped.log"
        )
        await laptop.run("touch 'code dir/noise.log'")
        await bed.write(
            setup_commands=[USE_OUR_RAY, "echo set up $((6 * 7)); date +%N >> ~/setups"],
            file_mounts={"~/code": "code dir"},
            rsync_exclude=["*.log"],
        )
        done = await bed.shoal("up c.yaml --yes --redirect-command-output")
        assert done.code == 0, done.stderr
        assert "set up 42" not in done.stdout + done.stderr
        yield bed


async def has_process(host: Host, words: str) -> bool:
    found = await host.run(f"pgrep -f {shlex.quote(words)}")
    return found.code == 0


async def no_process(host: Host, words: str) -> bool:
    return not await has_process(host, words)


def word(text: str) -> str:
    return shlex.quote(text)


async def test_redirected_output_is_in_a_file_for_each_node(bed: Bed) -> None:
    for node in ("head", "worker-1", "worker-2"):
        log = await bed.laptop.run(f"cat ~/.cache/shoal/logs/mine/{node}.log")
        assert "set up 42" in log.stdout.splitlines()


class TestExec:
    async def test_output_and_exit_code_are_passed_through(self, bed: Bed) -> None:
        done = await bed.shoal("exec mine 'echo out; echo err >&2; exit 5'")
        assert (done.code, done.stdout, done.stderr) == (5, "out\n", "err\n")

    async def test_a_command_is_not_interpreted_by_other_shells(self, bed: Bed) -> None:
        command = f"printf %s {word(AWKWARD)}"
        done = await bed.shoal(f"exec c.yaml {word(command)}")
        assert done.stdout == AWKWARD

    async def test_input_reaches_the_command(self, bed: Bed) -> None:
        done = await bed.laptop.run(f"{SHOAL} exec 'tr a-z A-Z'", stdin="shout\n")
        assert done.stdout == "SHOUT\n"

    async def test_the_environment_names_the_cluster(self, bed: Bed) -> None:
        done = await bed.shoal("exec 'echo $RAY_ADDRESS; stat -c %a $RAY_AUTH_TOKEN_PATH'")
        assert done.stdout.split() == [f"{bed.head.address}:6379", "600"]

    @pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
    async def test_an_interrupt_ends_the_command_on_the_head(
        self, bed: Bed, sign: signal.Signals
    ) -> None:
        running = await bed.laptop.popen([SHOAL, "exec", "mine", "echo begun; sleep 4711"])
        assert await running.stdout.readline() == b"begun\n"
        await until(lambda: has_process(bed.head, "sleep 4711"), every=0.2)
        running.send_signal(sign)
        assert await running.wait() == 128 + sign
        await until(lambda: no_process(bed.head, "sleep 4711"), every=0.2)

    async def test_ctrl_c_at_a_terminal_reaches_the_command(self, bed: Bed) -> None:
        inner = "trap 'echo caught; exit 6' INT; while :; do echo on; sleep 0.1; done"
        command = f"{SHOAL} exec mine {word(inner)}"
        running = await bed.laptop.popen(["script", "-qfec", command, "/dev/null"])
        for _ in range(10):  # the first output comes before ssh forwards keys
            await asyncio.wait_for(running.stdout.readuntil(b"on"), 60)
        running.stdin.write(b"\x03")
        await asyncio.wait_for(running.stdout.readuntil(b"caught"), 60)
        assert await running.wait() == 6

    async def test_a_port_of_the_head_can_be_forwarded(self, bed: Bed) -> None:
        command = "python -u -m http.server 8899 --bind 127.0.0.1"
        running = await bed.laptop.popen([SHOAL, "exec", "mine", command, "-p", "18899:8899"])
        await running.stdout.readuntil(b"Serving HTTP")
        page = await bed.laptop.run("curl -s http://127.0.0.1:18899/")
        assert "Directory listing" in page.stdout
        running.send_signal(signal.SIGINT)
        await running.wait()
        await until(lambda: no_process(bed.head, "http.server 8899"), every=0.2)

    @pytest.mark.parametrize("program", ["tmux", "screen"])
    async def test_a_detached_command_keeps_running(self, bed: Bed, program: str) -> None:
        # Debian's init creates this directory; the simulated host's init does not.
        await bed.head.run("install -d -m 1777 /run/screen")
        out = f"~/{program}.out"
        command = f'echo {word(AWKWARD)} "$RAY_ADDRESS" > {out}; exit 3'
        done = await bed.shoal(f"exec mine {word(command)} --{program}")
        assert done.code == 0, done.stderr
        assert f"shoal attach mine --{program}" in done.stderr

        async def written() -> str:
            return (await bed.head.run(f"cat {out}", user="ubuntu")).stdout

        await until(written, "the command ran", every=0.2)
        assert await written() == f"{AWKWARD} {bed.head.address}:6379\n"

    async def test_attach_finds_the_tmux_session_again(self, bed: Bed) -> None:
        await bed.shoal("exec mine 'exit 33' --tmux")
        running = await bed.laptop.popen(
            ["script", "-qfec", f"{SHOAL} attach mine --tmux", "/dev/null"],
            env={"TERM": "xterm"},
        )
        await asyncio.wait_for(running.stdout.readuntil(b"ended with exit code 33"), 60)
        running.stdin.write(b"tmux kill-server\n")
        await running.wait()

    async def test_a_missing_multiplexer_is_reported_with_the_fix(self, bed: Bed) -> None:
        await bed.head.run("mv $(command -v screen) /root/screen")
        for command in ("exec mine true --screen", "attach mine --node-ip worker-2 --tmux"):
            done = await bed.shoal(command)
            assert done.code == 2
        done = await bed.shoal("exec mine true --screen")
        assert "screen is not installed" in done.stderr
        assert "apt-get install -y screen" in done.stderr

    async def test_contradictory_options_are_refused_with_the_reason(self, bed: Bed) -> None:
        for options, reason in (
            ("--run-env docker", "have no container"),
            ("--tmux --stop", "--stop cannot be combined with --tmux"),
            ("--tmux -p 80", "--port-forward cannot be combined with --tmux"),
        ):
            done = await bed.shoal(f"exec mine true {options}")
            assert done.code == 2
            assert reason in done.stderr


class TestAttach:
    async def test_a_shell_on_the_head_has_the_environment_of_the_cluster(self, bed: Bed) -> None:
        typed = "hostname; echo $RAY_ADDRESS; test -r $RAY_AUTH_TOKEN_PATH && exit 4\n"
        done = await bed.laptop.run(f"{SHOAL} attach mine", stdin=typed)
        assert done.code == 4
        assert done.stdout.split() == [bed.head.name, f"{bed.head.address}:6379"]

    async def test_a_shell_works_in_a_terminal(self, bed: Bed) -> None:
        command = f"{SHOAL} attach mine"
        running = await bed.laptop.popen(
            ["script", "-qfec", command, "/dev/null"], env={"TERM": "xterm"}
        )
        running.stdin.write(b"echo $((40 + 2)) on $(hostname) as $USER; exit 3\n")
        await asyncio.wait_for(running.stdout.readuntil(f"42 on {bed.head.name}".encode()), 60)
        assert await running.wait() == 3

    async def test_a_worker_is_found_by_its_address(self, bed: Bed) -> None:
        address = bed.workers[1].address
        done = await bed.laptop.run(f"{SHOAL} attach mine --node-ip {address}", stdin="hostname\n")
        assert done.stdout.strip() == bed.workers[1].name

    async def test_an_unknown_address_is_not_a_node(self, bed: Bed) -> None:
        done = await bed.shoal("attach mine --node-ip 10.99.0.1")
        assert done.code == 3
        assert f"worker-1 ({bed.workers[0].address})" in done.stderr


async def test_submit_passes_arguments_unchanged(bed: Bed) -> None:
    await bed.laptop.run("mkdir -p 'my dir' && cat > 'my dir/my script.py'", stdin=SCRIPT)
    done = await bed.shoal(
        f"submit mine 'my dir/my script.py' -- --flag {word(AWKWARD)} '' -x", timeout=60
    )
    assert done.code == 9, done.stderr
    assert json.loads(done.stdout) == [
        42, "/home/ubuntu/my script.py", "--flag", AWKWARD, "", "-x",
    ]  # fmt: skip


class TestRsync:
    async def test_a_trailing_slash_copies_the_content_of_a_directory(self, bed: Bed) -> None:
        await bed.laptop.run("mkdir -p 'tree é' && echo x > 'tree é/it is'")
        for source, place in (("tree é", "in/tree é/it is"), ("tree é/", "in/it is")):
            done = await bed.shoal(f"rsync_up mine {word(source)} in")
            assert done.code == 0, done.stderr
            assert await bed.read(bed.head, f"cat {word(place)}") == "x"
        for source, place in (("in", "back/in/it is"), ("~/in/", "back/it is")):
            done = await bed.shoal(f"rsync_down mine {word(source)} back")
            assert done.code == 0, done.stderr
            assert (await bed.laptop.run(f"cat {word(place)}")).stdout == "x\n"

    @pytest.mark.parametrize("name", [AWKWARD.replace("/", "_"), "-rf", "a b"])
    async def test_a_file_may_have_any_name(self, bed: Bed, name: str) -> None:
        await bed.laptop.run(f"echo 1 > ./{word(name)}")
        done = await bed.shoal(f"rsync-up mine -- {word(name)} {word('/tmp/' + name)}")
        assert done.code == 0, done.stderr
        assert await bed.read(bed.head, f"cat /tmp/{word(name)}") == "1"
        done = await bed.shoal(f"rsync-down mine -- {word('/tmp/' + name)} {word('back/' + name)}")
        assert done.code == 0, done.stderr
        assert (await bed.laptop.run(f"cat back/{word(name)}")).stdout == "1\n"

    async def test_all_nodes_sends_to_every_node(self, bed: Bed) -> None:
        await bed.laptop.run("echo shared > shared")
        done = await bed.shoal("rsync-up mine -A shared /tmp/shared --json")
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert {event["node"] for event in events} == {"head", "worker-1", "worker-2"}
        for host in bed.hosts:
            assert await bed.read(host, "cat /tmp/shared") == "shared"

    async def test_without_paths_the_file_mounts_are_synced(self, bed: Bed) -> None:
        await bed.laptop.run("echo 2 > 'code dir/sub/a'")
        assert (await bed.shoal("rsync-up c.yaml")).code == 0
        assert await bed.read(bed.head, "cat code/sub/a") == "2"
        assert await bed.read(bed.workers[0], "cat code/sub/a") == "1"
        assert await bed.read(bed.head, "ls -R code | grep -c log || true") == "0"
        await bed.head.run("echo 3 > ~ubuntu/code/sub/a")
        assert (await bed.shoal("rsync-down c.yaml")).code == 0
        assert (await bed.laptop.run("cat 'code dir/sub/a'")).stdout == "3\n"
        await bed.laptop.run("echo 1 > 'code dir/sub/a'")

    async def test_the_python_api_copies_files(self, bed: Bed) -> None:
        program = """
from shoal import Cluster
cluster = Cluster("c.yaml")
cluster.upload("parcel", "/tmp/parcel", all_nodes=True)
cluster.download("/tmp/parcel", "returned")
"""
        await bed.laptop.run("echo 7 > parcel")
        (await bed.laptop.run("python -", stdin=program)).require("the program")
        assert await bed.read(bed.workers[1], "cat /tmp/parcel") == "7"
        assert (await bed.laptop.run("cat returned")).stdout == "7\n"

    async def test_a_missing_source_is_named(self, bed: Bed) -> None:
        done = await bed.shoal("rsync-up mine nothing /tmp/x")
        assert (done.code, "nothing does not exist" in done.stderr) == (2, True)
        done = await bed.shoal("rsync-down mine /no/such x")
        assert done.code == 6
        assert "/no/such" in done.stderr


async def test_addresses_are_printed_one_per_line(bed: Bed) -> None:
    assert (await bed.shoal("get-head-ip mine")).stdout == f"{bed.head.address}\n"
    workers = [host.address for host in bed.workers]
    assert (await bed.shoal("get_worker_ips c.yaml")).stdout.split() == workers
    assert json.loads((await bed.shoal("get-worker-ips --json")).stdout) == {"worker_ips": workers}


async def test_ssh_config_gives_the_nodes_names(bed: Bed) -> None:
    await bed.laptop.run("echo 'Host *.example\n  User nobody' > ~/.ssh/config")
    printed = await bed.shoal("ssh-config mine")
    assert "Host mine-worker-2\n" in printed.stdout
    for _ in range(2):
        assert (await bed.shoal("ssh-config mine --write")).code == 0
    config = (await bed.laptop.run("cat ~/.ssh/config")).stdout
    assert config.count("Include") == 1
    assert config.endswith("Host *.example\n  User nobody\n")
    ssh = "ssh -o BatchMode=yes"
    assert (await bed.laptop.run(f"{ssh} mine hostname")).stdout.strip() == bed.head.name
    worker = await bed.laptop.run(f"{ssh} mine-worker-1 hostname")
    assert worker.stdout.strip() == bed.workers[0].name


async def test_the_dashboard_opens_only_with_the_login_url(bed: Bed) -> None:
    running = await bed.laptop.popen([SHOAL, "dashboard", "mine", "--json"])
    opened = json.loads(await asyncio.wait_for(running.stdout.readline(), 60))
    login, page = opened["url"], "http://127.0.0.1:8265/api/cluster_status"
    curl = "curl -s -o /dev/null -w '%{http_code}'"
    assert (await bed.laptop.run(f"{curl} {page}")).stdout == "401"
    assert (await bed.laptop.run(f"{curl} {login}x")).stdout == "404"
    assert (await bed.laptop.run(f"{curl} -c jar {login}")).stdout == "200"
    assert (await bed.laptop.run(f"{curl} -b jar {page}")).stdout == "200"
    token = await bed.read(bed.head, "cat .shoal/auth_token")
    assert token not in json.dumps(opened)
    running.send_signal(signal.SIGINT)
    assert await running.wait() == 0
    assert (await bed.laptop.run(f"curl -s {page}")).code != 0


async def test_monitor_repeats_status_until_interrupted(bed: Bed) -> None:
    running = await bed.laptop.popen([SHOAL, "monitor", "mine", "--every", "0.1", "--json"])
    for _ in range(2):
        status = json.loads(await asyncio.wait_for(running.stdout.readline(), 60))
        assert [node["phase"] for node in status["nodes"]] == ["ready"] * 3
    running.send_signal(signal.SIGINT)
    assert await running.wait() == 0


@pytest.mark.long
async def test_stop_ends_ray_and_start_brings_it_back_without_setup(bed: Bed) -> None:
    done = await bed.shoal("stop mine")
    assert (done.code, "--yes" in done.stderr) == (2, True)
    done = await bed.shoal("stop mine --yes")
    assert done.code == 0, done.stderr
    for host in bed.hosts:
        assert not await has_process(host, "raylet")
        assert (await bed.read(host, "cat /var/tmp/shoal-owner")).startswith("mine@")
    assert await node_phases(bed) == ["stopped"] * 3

    await bed.read(bed.head, "echo 'ray() { return 3; }' >> ~/.bashrc")
    assert (await bed.shoal("start mine")).code == 4
    assert await node_phases(bed) == ["failed"] * 3, "a failed start is not a stop"
    await bed.read(bed.head, "sed -i '/^ray()/d' ~/.bashrc")

    setups = await bed.read(bed.head, "wc -l < setups")
    done = await bed.shoal("start mine")
    assert done.code == 0, done.stderr
    assert (await bed.shoal("status mine")).code == 0
    assert await bed.read(bed.head, "wc -l < setups") == setups
    again = await bed.shoal("start mine")
    assert (again.code, "nothing to do" in again.stderr) == (0, True)


async def node_phases(bed: Bed) -> list[str]:
    status = await bed.shoal("status mine --json")
    assert status.code == 4
    return [node["phase"] for node in json.loads(status.stdout)["nodes"]]
