"""Whose a machine is, from the commands that say so, run in a directory that stands for it."""

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

# Holds a lock as a controller does, and ends when asked.
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
class Machine:
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
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory() as folder:  # one that other users can get to
        Path(folder).chmod(0o755)
        home, shared = Path(folder, "home"), Path(folder, "shared")
        home.mkdir()
        shared.mkdir()
        shared.chmod(0o1777)
        machine = Machine(home, shared / "shoal-owner")
        yield machine
        for process in machine.started:
            process.kill()
            process.wait()


def test_a_machine_is_one_clusters_until_that_lets_go(machine: Machine) -> None:
    assert machine.claim(ALICE) == (0, "")
    assert machine.claim(ALICE) == (0, "")
    assert machine.claim(BOB) == (EXIT_CLAIMED, "cluster mine@192.0.2.10")
    machine.run(claims.release_command(BOB.owner))
    assert machine.owner() == ALICE
    machine.run(claims.release_command(ALICE.owner))
    assert machine.claim(BOB) == (0, "")
    assert machine.owner() == BOB


async def test_a_machine_that_is_taken_keeps_nothing_of_the_cluster_before(
    machine: Machine,
) -> None:
    machine.claim(ALICE)
    lease_loop = machine.start("sleep", "9999", RAY_CLOUD_INSTANCE_ID=ALICE.id)
    bystander = machine.start("sleep", "9999", RAY_CLOUD_INSTANCE_ID="i-another")
    (machine.home / ".shoal").mkdir()
    (machine.home / ".shoal" / "auth_token").write_text("old")
    assert machine.claim(BOB, force=True) == (0, "")
    assert machine.owner() == BOB
    assert not alive(lease_loop)
    assert alive(bystander)
    assert not (machine.home / ".shoal").exists()


async def test_a_head_that_is_taken_has_no_controller_of_the_cluster_before(
    machine: Machine,
) -> None:
    machine.claim(Claim(ALICE.owner, "head", "192.0.2.10"))
    directory = machine.home / paths.DIRECTORY
    directory.mkdir(parents=True)
    for name in (paths.CONFIG, "../cluster_key"):
        (directory / name).touch()
    lock = directory / paths.SUPERVISOR_LOCK
    holder = machine.start(sys.executable, "-c", HOLDER, str(lock))
    await until(lambda: lock.exists() and lock.read_text() != "")
    assert machine.claim(BOB, force=True) == (0, "")
    assert not alive(holder)
    assert not (machine.home / ".shoal").exists()


def test_taking_a_worker_spares_the_files_of_a_head_that_has_the_same_home(
    machine: Machine,
) -> None:
    machine.claim(ALICE)
    (machine.home / ".shoal").mkdir()
    (machine.home / ".shoal" / "cluster_key").touch()
    assert machine.claim(BOB, force=True) == (0, "")
    assert (machine.home / ".shoal" / "cluster_key").exists()


def test_taking_what_is_ones_own_leaves_all_as_it_is(machine: Machine) -> None:
    machine.claim(ALICE)
    node = machine.start("sleep", "9999", RAY_CLOUD_INSTANCE_ID=ALICE.id)
    assert machine.claim(ALICE, force=True) == (0, "")
    assert alive(node)


def test_nothing_is_ended_on_a_machine_that_is_another_clusters(machine: Machine) -> None:
    ends = claims.unless_claimed_by_others(ALICE.owner, "echo ended")
    assert machine.run(ends) == (0, "ended")
    machine.claim(ALICE)
    assert machine.run(ends) == (0, "ended")
    machine.run(claims.release_command(ALICE.owner))
    machine.claim(BOB)
    assert machine.run(ends) == (0, "")


@pytest.fixture
def nobody() -> str:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    return "nobody"


def test_a_claim_of_another_user_is_named_and_can_be_taken_by_that_user_only(
    machine: Machine, nobody: str
) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    before = os.umask(0o077)
    try:
        machine.claim(ALICE)
    finally:
        os.umask(before)
    assert machine.claim(BOB, user=nobody) == (EXIT_CLAIMED, "cluster mine@192.0.2.10")
    assert machine.claim(BOB, force=True, user=nobody) == (
        EXIT_OWNED_BY_OTHER_USER,
        f"{me}\n{machine.path}",
    )
    assert machine.owner() == ALICE
    machine.path.chmod(0o600)
    assert machine.run(host_claims.READ_COMMAND, nobody) == (0, "? ?")
    assert machine.claim(BOB, user=nobody) == (EXIT_CLAIMED, f"a cluster of user {me}")
    assert machine.run(claims.unless_claimed_by_others(BOB.owner, "echo ended"), nobody) == (0, "")
