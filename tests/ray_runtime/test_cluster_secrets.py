"""Authorizing and revoking a cluster's key on a host, without ever removing its owner's."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path

import pytest

from shoal.core.errors import SetupError
from shoal.ray_runtime import cluster_secrets
from shoal.ray_runtime.cluster_secrets import Credentials
from shoal.remote.local_runner import LocalRunner

OWNER_KEY = "ssh-rsa AAAAowner me@laptop"
HEAD = "192.0.2.10"


class Host:
    """A home directory, and the commands that Shoal runs in it."""

    def __init__(self, home: Path) -> None:
        self.runner = LocalRunner(home, {})
        self.keys = home / ".ssh" / "authorized_keys"
        self._home = home

    def write_keys(self, text: str) -> None:
        self.keys.parent.mkdir(mode=0o700, exist_ok=True)
        self.keys.write_text(text)
        self.keys.chmod(0o640)

    def revoke(self, cluster: str = "mine", head: str = HEAD, *, max_file_bytes: int = -1) -> str:
        command = cluster_secrets.revoke_command(cluster, head)
        limits = (max_file_bytes, max_file_bytes)
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self._home,
            capture_output=True,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits),
        )
        return done.stdout.strip() if done.returncode == 0 else "failed"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    home = tmp_path / "a home"
    home.mkdir()
    return Host(home)


def credentials(cluster: str = "mine", head: str = HEAD, key: str = "AAAAcluster") -> Credentials:
    return Credentials("secret", f"ssh-ed25519 {key} shoal:{cluster}@{head}")


@pytest.mark.parametrize("end", ["\n", ""])
async def test_owner_key_survives_a_cluster_with_or_without_a_final_newline(
    host: Host, end: str
) -> None:
    host.write_keys(OWNER_KEY + end)
    await cluster_secrets.trust_head(host.runner, credentials())
    await cluster_secrets.accept_credentials(host.runner, credentials())
    assert host.keys.read_text().splitlines() == [OWNER_KEY, credentials().public_key]
    assert host.revoke() == "revoked"
    assert host.keys.read_text() == f"{OWNER_KEY}\n"
    assert host.keys.stat().st_mode & 0o777 == 0o640


async def test_line_that_is_not_entirely_ours_is_kept(host: Host) -> None:
    joined = f"{OWNER_KEY}{credentials().public_key}"
    host.write_keys(f"{joined}\n")
    assert host.revoke() == ""
    assert host.keys.read_text() == f"{joined}\n"


async def test_full_disk_leaves_the_keys_unchanged(host: Host) -> None:
    text = f"{OWNER_KEY}\n{credentials().public_key}\n"
    host.write_keys(text)
    assert host.revoke(max_file_bytes=0) == "failed"
    assert host.keys.read_text() == text
    assert [path.name for path in host.keys.parent.iterdir()] == ["authorized_keys"]


async def test_clusters_of_the_same_name_with_other_heads_keep_their_keys(host: Host) -> None:
    host.write_keys(OWNER_KEY)
    await cluster_secrets.trust_head(host.runner, credentials(head="192.0.2.10", key="AAAAalice"))
    await cluster_secrets.trust_head(host.runner, credentials(head="192.0.2.1", key="AAAAbob"))
    assert host.revoke(head="192.0.2.1") == "revoked"
    assert host.keys.read_text().splitlines()[1:] == [credentials(key="AAAAalice").public_key]


async def test_symlinked_authorized_keys_stay_a_symlink(host: Host) -> None:
    host.write_keys(f"{OWNER_KEY}\n{credentials().public_key}\n")
    target = host.keys.rename(host.keys.with_name("the real one"))
    host.keys.symlink_to(target)
    assert host.revoke() == "revoked"
    assert host.keys.is_symlink() and target.read_text() == f"{OWNER_KEY}\n"


async def test_host_without_keys_has_nothing_to_revoke(host: Host) -> None:
    assert host.revoke() == ""
    assert not host.keys.exists()


async def test_head_of_another_cluster_creates_a_new_key(
    host: Host,
) -> None:
    first = await cluster_secrets.create_credentials(host.runner, "mine", HEAD)
    assert await cluster_secrets.create_credentials(host.runner, "mine", HEAD) == first
    second = await cluster_secrets.create_credentials(host.runner, "other", HEAD)
    assert second.public_key.endswith(f" shoal:other@{HEAD}")
    assert second.public_key.split()[1] != first.public_key.split()[1]


async def test_worker_that_shares_the_heads_home_is_refused_unchanged(
    host: Host,
) -> None:
    created = await cluster_secrets.create_credentials(host.runner, "mine", HEAD)
    with pytest.raises(SetupError, match="same home directory as the head") as caught:
        await cluster_secrets.accept_credentials(host.runner, created)
    assert "user: NAME" in caught.value.fix
    assert not host.keys.exists()
    await cluster_secrets.trust_head(host.runner, created)  # the head may log in to itself


async def test_error_of_an_unwritable_home_does_not_show_the_secret(
    host: Host,
) -> None:
    (host.keys.parent.parent / ".ssh").write_text("not a directory")
    with pytest.raises(SetupError, match="could not store the cluster's token and key") as caught:
        await cluster_secrets.accept_credentials(host.runner, credentials())
    assert "secret" not in repr(caught.value.__dict__)
