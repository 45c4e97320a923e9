"""The output of `shoal ssh-config` works with plain ssh."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from shoal.remote.ssh_config_file import ssh_config
from shoal.remote.ssh_runner import SshRunner
from shoal.remote.ssh_target import SshTarget
from tests.remote.sshd import Sshd

NewServer = Callable[..., tuple[Sshd, SshTarget]]


def ssh(config: Path, name: str) -> str:
    argv = ["ssh", "-F", str(config), "-o", "BatchMode=yes", name, "pwd"]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


async def test_plain_ssh_reaches_the_head_and_a_worker_behind_it(
    new_server: NewServer, tmp_path: Path
) -> None:
    head, by_head = new_server("head")
    worker, target = new_server("worker")
    head.start()
    worker.start()
    targets = {"demo": by_head, "demo-worker-1": replace(target, jump=by_head)}
    config = tmp_path / "config"
    config.write_text(ssh_config(targets))
    assert ssh(config, "demo") == str(head.home)
    assert ssh(config, "demo-worker-1") == str(worker.home)


async def test_an_open_connection_is_used(new_server: NewServer, tmp_path: Path) -> None:
    server, target = new_server()
    server.start()
    await SshRunner("node-1", target).connect(timeout=60)
    server.authorized_keys.write_text("")  # no new login is possible
    config = tmp_path / "config"
    config.write_text(ssh_config({"demo": target}))
    assert ssh(config, "demo") == str(server.home)


def test_unset_options_are_left_to_the_users_configuration() -> None:
    bare = SshTarget(
        host="10.0.0.1",
        user="ubuntu",
        known_hosts=Path('/home/me/my "hosts" 100%'),
        host_key_alias="demo-head",
        control_dir=Path("/tmp/x"),
        proxy_command="aws ssm start-session --target %h",
    )
    text = ssh_config({"demo": bare})
    assert "IdentityFile" not in text
    assert "Port" not in text
    assert "    ProxyCommand aws ssm start-session --target %h\n" in text
    assert r'    UserKnownHostsFile "/home/me/my \"hosts\" 100%%"' in text
