"""Logging in to a private registry, for the length of one command on a node.

The engine's own `login` would leave the password in a file there. It asks a helper program
instead, which answers from the environment of the command: there is a directory with the helper
for as long as the command runs, and the password is never in it, on a command line or in a log.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence

from shoal.core.errors import ConfigError
from shoal.providers.model import RegistryLogin
from shoal.providers.protocol import Provider
from shoal.remote.runner import quote
from shoal.spec.cluster_spec import RegistrySpec

LoginSource = Callable[[], Awaitable[RegistryLogin | None]]

# Where the controller finds the password that its cluster's `up` had.
HANDED_OVER = "SHOAL_REGISTRY_PASSWORD"
_COMMAND_SECONDS = 60.0
# A command that asks a person, or a safe, is to do so once for all nodes.
_ONE_AT_A_TIME = threading.Lock()

# $0 has the settings for the engine; the rest is the command. What the helper says arrives on
# standard input.
_LOGGED_IN = r"""
IFS= read -r SHOAL_LOGIN
export SHOAL_LOGIN
umask 077
mkdir -p "$HOME/.shoal"
place=$(mktemp -d "$HOME/.shoal/login.XXXXXX") || exit 1
trap 'rm -rf "$place"' EXIT
trap 'exit 1' HUP INT TERM
printf '%s\n' "$0" > "$place/config.json"
printf '%s\n' '#!/bin/sh' '[ "$1" = get ] && printf "%s\n" "$SHOAL_LOGIN"' \
  > "$place/docker-credential-shoal"
chmod 700 "$place/docker-credential-shoal"
PATH=$place:$PATH DOCKER_CONFIG=$place REGISTRY_AUTH_FILE=$place/config.json "$@" </dev/null
"""

# What the engines call the registry that is meant when none is named.
HUB = ("docker.io", "index.docker.io", "https://index.docker.io/v1/")


def host_of(image: str) -> str:
    """The registry that an image is to come from."""
    first, slash, _ = image.partition("/")
    return first if slash and (set(first) & set(".:") or first == "localhost") else HUB[0]


def login_source(registry: RegistrySpec | None, provider: Provider, image: str) -> LoginSource:
    """How to get in to the registry of an image: as the file says, if it speaks of that registry;
    else by the provider's own credentials, if the registry is the provider's."""

    async def login() -> RegistryLogin | None:
        if registry is not None and registry.server == host_of(image):
            return await _as_told(registry)
        provider_login = provider.capabilities.registry_login
        if provider_login is not None and (found := await provider_login(image)):
            return found
        return None if registry is None else await _as_told(registry)

    return login


async def _as_told(registry: RegistrySpec) -> RegistryLogin:
    secret = await asyncio.to_thread(password, registry, os.environ)
    return RegistryLogin(registry.server, registry.username, secret)


def logged_in(login: RegistryLogin | None, argv: Sequence[str]) -> tuple[str, bytes | None]:
    """A command for a node that runs `argv` as someone who has logged in to the registry, and
    what it is to read."""
    if login is None:
        return quote(argv), None
    servers = HUB if login.server in HUB else (login.server,)
    settings = json.dumps({"credHelpers": dict.fromkeys(servers, "shoal")})
    answer = {"ServerURL": servers[-1], "Username": login.username, "Secret": login.password}
    command = quote(["sh", "-c", _LOGGED_IN, settings, *argv])
    return command, f"{json.dumps(answer)}\n".encode()


async def handed_over(registry: RegistrySpec | None) -> dict[str, str]:
    """The environment by which a controller knows the password; without one, it has to do with
    what needs none."""
    if registry is None:
        return {}
    try:
        return {HANDED_OVER: await asyncio.to_thread(password, registry, os.environ)}
    except ConfigError:
        return {}


def password(registry: RegistrySpec, environment: Mapping[str, str]) -> str:
    """The registry's password, as its settings say, or as it was handed over."""
    if found := environment.get(HANDED_OVER):
        return found
    if registry.password_command:
        with _ONE_AT_A_TIME:
            return _printed(registry.password_command)
    if found := environment.get(registry.password_env):
        return found
    raise ConfigError(
        f"there is no password for the registry {registry.server}",
        why=f"the environment variable {registry.password_env} is not set",
        fix=f"export {registry.password_env}, or name a shoal.registry.password_command",
    )


@functools.cache
def _printed(command: str) -> str:
    why = f"it did not end within {_COMMAND_SECONDS:.0f} s"
    try:
        done = subprocess.run(
            ["sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_COMMAND_SECONDS,
            check=False,
            text=True,
        )
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip()
        why = f"it ended with exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        pass
    # Without its output, which could hold part of the password.
    raise ConfigError(
        "shoal.registry.password_command gives no password",
        why=why,
        fix="try it in a terminal: it must print the password and nothing else",
    )
