"""Letting a cluster's head into a machine and out again, and never its owner out."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path

import pytest

from shoal.core.errors import SetupError
from shoal.ray_runtime import cluster_secrets
from shoal.ray_runtime.cluster_secrets import Credentials
from shoal.remote.local_runner import LocalRunner

OWNERS = "ssh-rsa AAAAowner me@laptop"
HEAD = "192.0.2.10"


class Machine:
    """A home directory, and the commands that Shoal runs in it."""

    def __init__(self, home: Path) -> None:
        self.runner = LocalRunner(home, {})
        self.keys = home / ".ssh" / "authorized_keys"
        self._home = home

    def has(self, text: str) -> None:
        self.keys.parent.mkdir(mode=0o700, exist_ok=True)
        self.keys.write_text(text)
        self.keys.chmod(0o640)

    def forget(self, cluster: str = "mine", head: str = HEAD, *, most_bytes: int = -1) -> str:
        command = cluster_secrets.revoke_command(cluster, head)
        limits = (most_bytes, most_bytes)
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self._home,
            capture_output=True,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits),
        )
        return done.stdout.strip() if done.returncode == 0 else "failed"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    home = tmp_path / "a home"
    home.mkdir()
    return Machine(home)


def given(cluster: str = "mine", head: str = HEAD, key: str = "AAAAcluster") -> Credentials:
    return Credentials("secret", f"ssh-ed25519 {key} shoal:{cluster}@{head}")


@pytest.mark.parametrize("end", ["\n", ""])
async def test_the_owners_key_survives_a_cluster_whatever_its_line_ends_with(
    machine: Machine, end: str
) -> None:
    machine.has(OWNERS + end)
    await cluster_secrets.trust_head(machine.runner, given())
    await cluster_secrets.accept_credentials(machine.runner, given())
    assert machine.keys.read_text().splitlines() == [OWNERS, given().public_key]
    assert machine.forget() == "revoked"
    assert machine.keys.read_text() == f"{OWNERS}\n"
    assert machine.keys.stat().st_mode & 0o777 == 0o640


async def test_a_line_that_is_not_wholly_ours_stays(machine: Machine) -> None:
    joined = f"{OWNERS}{given().public_key}"
    machine.has(f"{joined}\n")
    assert machine.forget() == ""
    assert machine.keys.read_text() == f"{joined}\n"


async def test_a_full_disk_leaves_the_keys_as_they_were(machine: Machine) -> None:
    text = f"{OWNERS}\n{given().public_key}\n"
    machine.has(text)
    assert machine.forget(most_bytes=0) == "failed"
    assert machine.keys.read_text() == text
    assert [path.name for path in machine.keys.parent.iterdir()] == ["authorized_keys"]


async def test_clusters_of_one_name_with_other_heads_keep_their_keys(machine: Machine) -> None:
    machine.has(OWNERS)
    await cluster_secrets.trust_head(machine.runner, given(head="192.0.2.10", key="AAAAalice"))
    await cluster_secrets.trust_head(machine.runner, given(head="192.0.2.1", key="AAAAbob"))
    assert machine.forget(head="192.0.2.1") == "revoked"
    assert machine.keys.read_text().splitlines()[1:] == [given(key="AAAAalice").public_key]


async def test_a_list_of_keys_that_lies_elsewhere_stays_there(machine: Machine) -> None:
    machine.has(f"{OWNERS}\n{given().public_key}\n")
    elsewhere = machine.keys.rename(machine.keys.with_name("the real one"))
    machine.keys.symlink_to(elsewhere)
    assert machine.forget() == "revoked"
    assert machine.keys.is_symlink() and elsewhere.read_text() == f"{OWNERS}\n"


async def test_a_machine_without_keys_has_nothing_to_forget(machine: Machine) -> None:
    assert machine.forget() == ""
    assert not machine.keys.exists()


async def test_a_head_that_led_another_cluster_makes_a_key_that_can_be_told_from_the_old(
    machine: Machine,
) -> None:
    first = await cluster_secrets.create_credentials(machine.runner, "mine", HEAD)
    assert await cluster_secrets.create_credentials(machine.runner, "mine", HEAD) == first
    second = await cluster_secrets.create_credentials(machine.runner, "other", HEAD)
    assert second.public_key.endswith(f" shoal:other@{HEAD}")
    assert second.public_key.split()[1] != first.public_key.split()[1]


async def test_a_worker_in_the_heads_home_is_refused_before_anything_is_changed(
    machine: Machine,
) -> None:
    made = await cluster_secrets.create_credentials(machine.runner, "mine", HEAD)
    with pytest.raises(SetupError, match="same home directory as the head") as caught:
        await cluster_secrets.accept_credentials(machine.runner, made)
    assert "user: NAME" in caught.value.fix
    assert not machine.keys.exists()
    await cluster_secrets.trust_head(machine.runner, made)  # the head lets itself in


async def test_a_home_that_cannot_be_written_to_is_told_without_the_secret(
    machine: Machine,
) -> None:
    (machine.keys.parent.parent / ".ssh").write_text("not a directory")
    with pytest.raises(SetupError, match="could not store the cluster's token and key") as caught:
        await cluster_secrets.accept_credentials(machine.runner, given())
    assert "secret" not in repr(caught.value.__dict__)
