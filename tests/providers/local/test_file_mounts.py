"""Files, commands and settings reach the nodes unchanged and only once."""

from __future__ import annotations

import json

import pytest

from tests.providers.local.ssh_bed import Bed, actions

pytestmark = pytest.mark.simcloud

ODD = 'it\'s "odd" $(touch bad) `touch worse` ünï  two'


async def test_only_a_change_that_is_not_excluded_is_sent_and_set_up_again(
    bed: Bed,
) -> None:
    await bed.laptop.run("mkdir -p code/logs; echo 1 > code/main.py; echo x > code/logs/a.log")
    await bed.write(
        file_mounts={"~/code": "code"},
        rsync_exclude=["logs"],
        setup_commands=["cat ~/code/main.py >> ~/set-up"],
    )
    await bed.up()
    assert await bed.read(bed.workers[0], "ls ~/code; cat ~/set-up") == "main.py\n1"

    await bed.laptop.run("echo y > code/logs/a.log; touch code/main.py")
    assert (await bed.up())[-1]["event"] == "unchanged"

    await bed.laptop.run("echo 2 > code/main.py")
    events = await bed.up()
    reasons = {e["reason"] for e in events if e["event"] == "plan"}
    assert actions(events)[0] == ("restart", "head")
    assert reasons == {"its files changed"}
    assert await bed.read(bed.workers[1], "cat ~/set-up") == "1\n2"


async def test_no_restart_sends_files_and_keeps_ray_running(bed: Bed) -> None:
    await bed.laptop.run("mkdir -p code; echo 1 > code/main.py")
    await bed.write(file_mounts={"~/code": "code"})
    await bed.up()
    before = await bed.read(bed.workers[0], "pgrep -x raylet")
    await bed.laptop.run("echo 2 > code/main.py")
    events = await bed.up("--no-restart")
    assert {action for action, _ in actions(events)} == {"update"}
    assert await bed.read(bed.workers[0], "cat ~/code/main.py") == "2"
    assert await bed.read(bed.workers[0], "pgrep -x raylet") == before


@pytest.mark.long
async def test_restart_only_restarts_ray_without_setup(bed: Bed) -> None:
    await bed.write(setup_commands=["echo once >> ~/set-up"])
    await bed.up()
    before = await bed.read(bed.workers[0], "pgrep -x raylet")
    await bed.up("--restart-only")
    assert await bed.read(bed.workers[0], "pgrep -x raylet") != before
    assert await bed.read(bed.workers[0], "cat ~/set-up") == "once"


async def test_cluster_synced_files_reach_the_workers(bed: Bed) -> None:
    await bed.write(
        cluster_synced_files=["~/shared dir", "/tmp/not-there"],
        head_setup_commands=[
            "mkdir -p ~/'shared dir/deep' && echo made > ~/'shared dir/deep/file'"
        ],
        worker_setup_commands=["cat ~/'shared dir/deep/file' > ~/seen"],
    )
    await bed.up()
    for worker in bed.workers:
        assert await bed.read(worker, "cat ~/seen") == "made"


async def test_the_head_sends_nothing_to_a_host_with_another_key(bed: Bed) -> None:
    """The worker presents another host key than the one it reported."""
    other = "rm /etc/ssh/ssh_host_ed25519_key.pub; ssh-keygen -q -t ed25519 -N '' -f /tmp/other"
    key = "/etc/ssh/ssh_host_ed25519_key.pub"
    for worker in bed.workers:
        (await worker.run(f"{other}; mv /tmp/other.pub {key}")).require("another key")
    await bed.write(
        cluster_synced_files=["~/shared"], head_setup_commands=["echo secret > ~/shared"]
    )
    done = await bed.shoal("up c.yaml --yes")
    assert done.code != 0
    assert "the head could not send ~/shared" in done.stderr
    for worker in bed.workers:
        assert await bed.read(worker, "ls ~/shared 2>/dev/null || true") == ""


LARGE = "head -c 2000000 /dev/urandom"
SENT_DIRECTLY = "syncing files directly"
SLOW = 500  # ms per packet to the head, so that sending files takes seconds


@pytest.mark.long
async def test_on_a_slow_link_only_large_files_are_relayed_by_the_head(
    bed: Bed,
) -> None:
    script = f'mkdir -p code/empty "code/$1" && {LARGE} > "code/$1/$1"; ln -s "$1" code/link'
    await bed.laptop.run(["bash", "-c", script, "-", ODD])
    await bed.laptop.run("echo x > code/a.log; echo run > code/run; chmod 755 code/run")
    await bed.read(bed.head, "mkdir ~/code && echo mine > ~/code/file-of-the-head")
    await bed.write(file_mounts={"~/code": "code"}, rsync_exclude=["*.log"])
    await bed.head.delay(SLOW)
    events = await bed.up()
    await bed.head.delay(0)
    assert not [e for e in events if SENT_DIRECTLY in e.get("detail", "")]
    listing = "cd ~/code; find . -exec ls -ld {} + | cut -c1-10 | sort; find . -type f | sort"
    whole = "cd ~/code; find . -type f -exec sha256sum {} + | sort"
    for worker in bed.workers:
        known = await bed.read(bed.head, f"cat ~/.shoal/known/{worker.address}")
        assert worker.machine.host_key.public.split()[1] in known
        await bed.read(worker, "echo mine > ~/code/file-of-the-head")
        assert await bed.read(worker, whole) == await bed.read(bed.head, whole)
        assert await bed.read(worker, listing) == await bed.read(bed.head, listing)
        assert await bed.read(worker, "readlink ~/code/link") == ODD
        assert await bed.read(worker, "ls -d ~/code/empty ~/code/a.log 2>&1 | grep -c No") == "1"


@pytest.mark.long
async def test_large_files_are_sent_directly_if_the_head_cannot_reach_its_workers(bed: Bed) -> None:
    await bed.laptop.run(f"mkdir code; {LARGE} > code/data")
    broken = "printf '#!/bin/sh\\nexit 255\\n' > /usr/local/bin/ssh; chmod 755 /usr/local/bin/ssh"
    await bed.head.run(broken, user="root")
    await bed.write(file_mounts={"~/code": "code"})
    await bed.head.delay(SLOW)
    nodes = [e["node"] for e in await bed.up() if SENT_DIRECTLY in e.get("detail", "")]
    assert sorted(nodes) == ["worker-1", "worker-2"]
    sums = {await bed.read(host, "sha256sum < ~/code/data") for host in bed.hosts}
    assert len(sums) == 1


async def test_names_and_values_are_not_interpreted_by_a_shell(bed: Bed) -> None:
    script = 'mkdir -p "$1" && printf %s content > "$1/$1"'
    await bed.laptop.run(["bash", "-c", script, "-", ODD])
    commands = [
        "printf '%s\\n' 'a  b' \"c'd\" > ~/output # a comment",
        "cat <<'E' >> ~/output\n$(x)\nE",
    ]
    host_settings = {"resources": {ODD: 3}, "labels": {"odd": "a 'b' \"c\""}}
    await bed.write(
        file_mounts={f"~/{ODD}": ODD},
        setup_commands=commands,
        shoal={"hosts": {bed.workers[0].address: host_settings}},
    )
    await bed.up()
    for host in bed.hosts:
        files = await host.run(["cat", f"/home/ubuntu/{ODD}/{ODD}"])
        assert files.stdout == "content"
        assert await bed.read(host, "cat ~/output") == "a  b\nc'd\n$(x)"
        assert await bed.read(host, "ls ~/bad ~/worse 2>/dev/null; true") == ""
    environ = await bed.read(bed.workers[0], "tr '\\0' '\\n' < /proc/$(pgrep -x raylet)/environ")
    variables = dict(line.split("=", 1) for line in environ.splitlines() if "=" in line)
    assert json.loads(variables["RAY_OVERRIDE_RESOURCES"]) == host_settings["resources"]
    assert json.loads(variables["RAY_OVERRIDE_LABELS"]) == host_settings["labels"]


async def test_a_missing_file_mount_is_reported_before_anything_changes(
    bed: Bed,
) -> None:
    await bed.write(file_mounts={"~/data": "no such place"})
    done = await bed.shoal("up c.yaml --yes")
    assert done.code == 2
    assert "no such place does not exist" in done.stderr
    assert await bed.read(bed.head, "ls -a ~/.shoal 2>/dev/null; true") == ""


async def test_a_missing_key_is_reported_before_anything_changes(bed: Bed) -> None:
    await bed.write(auth={"ssh_user": "ubuntu", "ssh_private_key": "~/none.pem"})
    done = await bed.shoal("up c.yaml --yes")
    assert done.code == 2
    assert "none.pem does not exist" in done.stderr


async def test_the_token_and_the_users_key_do_not_leak(bed: Bed) -> None:
    done = await bed.shoal("up c.yaml --yes --json -v")
    assert done.code == 0
    token = await bed.read(bed.head, "cat ~/.shoal/auth_token")
    assert len(token) == 64
    assert token not in done.stdout + done.stderr
    for host in bed.hosts:
        assert await bed.read(host, "cat ~/.shoal/auth_token") == token
        assert await bed.read(host, "stat -c %a ~/.shoal/auth_token") == "600"
    laptop_key = (await bed.laptop.run("cat ~/.ssh/id_ed25519")).stdout.splitlines()[2]
    found = await bed.head.run(["grep", "-rlF", laptop_key, "/home/ubuntu", "/tmp", "/root"])
    assert found.stdout == ""
    workers = [worker.address for worker in bed.workers]
    for address in workers:
        login = (
            "ssh -i ~/.shoal/cluster_key -o IdentitiesOnly=yes -o BatchMode=yes "
            f"-o StrictHostKeyChecking=no ubuntu@{address} echo in"
        )
        assert await bed.read(bed.head, login) == "in"


async def test_the_head_gets_its_files_before_any_worker(bed: Bed) -> None:
    await bed.laptop.run("mkdir code && head -c 3000000 /dev/urandom > code/data")
    await bed.write(file_mounts={"~/code": "code"})
    events = await bed.up()
    details = [(e["node"], e["detail"]) for e in events if e["event"] == "node"]
    first = min(details.index((f"worker-{n}", "syncing files")) for n in (1, 2))
    assert details.index(("head", "syncing files")) < first
    for host in bed.hosts:
        assert await bed.read(host, "stat -c %s code/data") == "3000000"


async def test_the_nodes_check_out_the_commit_of_a_branch_whose_ref_is_packed(bed: Bed) -> None:
    await bed.laptop.run(
        "git init -q -b work repo; cd repo; git config user.email a@b; git config user.name a;"
        "echo 1 > main.py; git add .; git commit -qm 1; git clone -q --bare . ../origin.git;"
        "git pack-refs --all; test ! -e .git/refs/heads/work"
    )
    await bed.write(
        file_mounts={"/tmp/commit": "repo/.git/refs/heads/work", "~/origin.git": "origin.git"},
        setup_commands=[
            "test -e repo || git clone -q ~/origin.git repo",
            "cd repo && git fetch -q && git checkout -q `cat /tmp/commit`",
        ],
    )
    await bed.up()
    assert await bed.read(bed.workers[0], "cat repo/main.py") == "1"

    await bed.laptop.run(
        "cd repo; echo 2 > main.py; git commit -qam 2; git push -q ../origin.git work"
    )
    await bed.up()
    assert await bed.read(bed.workers[1], "cat repo/main.py") == "2"
