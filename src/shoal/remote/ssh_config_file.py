"""The hosts of a cluster in the format of ~/.ssh/config, so that plain `ssh NAME` reaches them."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.remote.ssh_target import SshTarget, config_path, jump_command


def ssh_config(targets: Mapping[str, SshTarget]) -> str:
    """One Host block for each name. ssh uses an open connection of Shoal's; otherwise it makes its
    own, with the same pinned host key, and through the same jump host if that has a name too."""
    names = {target: name for name, target in targets.items()}
    return "\n".join(_block(name, target, names) for name, target in targets.items())


def _block(name: str, target: SshTarget, names: Mapping[SshTarget, str]) -> str:
    settings = {
        "HostName": target.host,
        "Port": target.port,
        "User": target.user,
        "IdentityFile": config_path(target.key) if target.key is not None else None,
        "IdentitiesOnly": "yes" if target.key is not None else None,
        "HostKeyAlias": target.host_key_alias,
        "UserKnownHostsFile": config_path(target.known_hosts),
        "StrictHostKeyChecking": "accept-new",
        "ControlPath": config_path(target.socket),
        **_proxy_settings(target, names),
    }
    lines = [f"    {key} {value}\n" for key, value in settings.items() if value is not None]
    return f"Host {name}\n{''.join(lines)}"


def _proxy_settings(target: SshTarget, names: Mapping[SshTarget, str]) -> dict[str, str]:
    if target.jump is None:
        return {"ProxyCommand": target.proxy_command} if target.proxy_command is not None else {}
    if target.jump in names:
        return {"ProxyJump": names[target.jump]}
    return {"ProxyCommand": jump_command(target.jump)}
