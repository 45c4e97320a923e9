"""Claims of hosts: the real commands, run in a directory that stands for a host."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shoal.bootstrap import claims
from shoal.bootstrap.claims import EXIT_CLAIMED, EXIT_OWNED_BY_OTHER_USER
from shoal.controller import paths
from shoal.providers import host_claims
from shoal.providers.host_claims import Claim
from tests.polling import alive, until

ALICE = Claim("mine@192.0.2.10", "worker-1", "192.0.2.11")
BOB = Claim("other@192.0.2.20", "worker-3", "rack-11")

# Holds a lock as a controller does, and ends on SIGTERM.
HOLDER = """
import sys, time
from pathlib import Path
from shoal.core.file_lock import FileLock

with FileLock(Path(sys.argv[1])) as lock:
    lock.try_acquire()
    lock.write_owner()
    time.sleep(9999)
"""


@dataclass
class Host:
    home: Path
    path: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, command: str, user: str | None = None) -> tuple[int, str]:
        command = command.replace(host_claims.CLAIM_FILE, str(self.path))
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.home, capture_output=True, text=True, user=user
        )
        return done.returncode, done.stdout.strip()

    def claim(
        self, claim: Claim, *, force: bool = False, user: str | None = None
    ) -> tuple[int, str]:
        return self.run(claims.claim_command(claim, force=force), user)

    def owner(self) -> Claim | None:
        return host_claims.parse(self.run(host_claims.READ_COMMAND)[1])

    def start(self, *argv: str, **env: str) -> int:
        self.started.append(subprocess.Popen(argv, cwd=self.home, env={**os.environ, **env}))
        return self.started[-1].pid


@pytest.fixture
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory() as folder:  # other users can enter it
        Path(folder).chmod(0o755)
        home, shared = Path(folder, "home"), Path(folder, "shared")
        home.mkdir()
        shared.mkdir()
        shared.chmod(0o1777)
        host = Host(home, shared / "shoal-owner")
        yield host
        for process in host.started:
            process.kill()
            process.wait()


def test_a_host_belongs_to_one_cluster_until_it_is_released(host: Host) -> None:
    assert host.claim(ALICE) == (0, "")
    assert host.claim(ALICE) == (0, "")
    assert host.claim(BOB) == (EXIT_CLAIMED, "cluster mine@192.0.2.10")
    host.run(claims.release_command(BOB.owner))
    assert host.owner() == ALICE
    host.run(claims.release_command(ALICE.owner))
    assert host.claim(BOB) == (0, "")
    assert host.owner() == BOB


async def test_a_forced_claim_removes_everything_of_the_previous_cluster(
    host: Host,
) -> None:
    host.claim(ALICE)
    node_process = host.start("sleep", "9999", RAY_CLOUD_INSTANCE_ID=ALICE.id)
    unrelated_process = host.start("sleep", "9999", RAY_CLOUD_INSTANCE_ID="i-another")
    (host.home / ".shoal").mkdir()
    (host.home / ".shoal" / "auth_token").write_text("old")
    assert host.claim(BOB, force=True) == (0, "")
    assert host.owner() == BOB
    assert not alive(node_process)
    assert alive(unrelated_process)
    assert not (host.home / ".shoal").exists()


async def test_a_forced_claim_of_a_head_ends_its_controller(
    host: Host,
) -> None:
    host.claim(Claim(ALICE.owner, "head", "192.0.2.10"))
    directory = host.home / paths.DIRECTORY
    directory.mkdir(parents=True)
    for name in (paths.CONFIG, "../cluster_key"):
        (directory / name).touch()
    lock = directory / paths.SUPERVISOR_LOCK
    holder = host.start(sys.executable, "-c", HOLDER, str(lock))
    await until(lambda: lock.exists() and lock.read_text() != "")
    assert host.claim(BOB, force=True) == (0, "")
    assert not alive(holder)
    assert not (host.home / ".shoal").exists()


def test_a_forced_claim_of_a_worker_keeps_the_files_of_a_head_in_the_same_home(
    host: Host,
) -> None:
    host.claim(ALICE)
    (host.home / ".shoal").mkdir()
    (host.home / ".shoal" / "cluster_key").touch()
    assert host.claim(BOB, force=True) == (0, "")
    assert (host.home / ".shoal" / "cluster_key").exists()


def test_a_forced_claim_of_an_own_host_changes_nothing(host: Host) -> None:
    host.claim(ALICE)
    node = host.start("sleep", "9999", RAY_CLOUD_INSTANCE_ID=ALICE.id)
    assert host.claim(ALICE, force=True) == (0, "")
    assert alive(node)


def test_a_guarded_command_does_nothing_on_a_host_of_another_cluster(host: Host) -> None:
    command = claims.unless_claimed_by_others(ALICE.owner, "echo ended")
    assert host.run(command) == (0, "ended")
    host.claim(ALICE)
    assert host.run(command) == (0, "ended")
    host.run(claims.release_command(ALICE.owner))
    host.claim(BOB)
    assert host.run(command) == (0, "")


@pytest.fixture
def other_user() -> str:
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    return "nobody"


def test_only_its_user_can_replace_the_claim_of_another_user(host: Host, other_user: str) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    before = os.umask(0o077)
    try:
        host.claim(ALICE)
    finally:
        os.umask(before)
    assert host.claim(BOB, user=other_user) == (EXIT_CLAIMED, "cluster mine@192.0.2.10")
    assert host.claim(BOB, force=True, user=other_user) == (
        EXIT_OWNED_BY_OTHER_USER,
        f"{me}\n{host.path}",
    )
    assert host.owner() == ALICE
    host.path.chmod(0o600)
    assert host.run(host_claims.READ_COMMAND, other_user) == (0, "? ?")
    assert host.claim(BOB, user=other_user) == (EXIT_CLAIMED, f"a cluster of user {me}")
    assert host.run(claims.unless_claimed_by_others(BOB.owner, "echo ended"), other_user) == (0, "")
