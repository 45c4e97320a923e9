"""Logs in to a private registry for the duration of one command on a node.

`docker login` would leave the password in a file. Instead, the container runtime gets a credential
helper that answers from the environment of the command: a directory with the helper exists while
the command runs, and the password is never in a file, on a command line or in a log.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import subprocess
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence

from shoal.core.errors import ConfigError
from shoal.providers.model import RegistryLogin
from shoal.providers.protocol import Provider
from shoal.remote.runner import quote
from shoal.remote.scripts import script_command
from shoal.spec.cluster_spec import RegistrySpec

_log = logging.getLogger(__name__)

LoginSource = Callable[[], Awaitable[RegistryLogin | None]]

# The environment variable through which `up` passes the password to the controller.
PASSWORD_VARIABLE = "SHOAL_REGISTRY_PASSWORD"
_COMMAND_SECONDS = 60.0
# A password command may prompt a person or unlock a vault: it runs once for all nodes.
_PASSWORD_COMMAND_LOCK = threading.Lock()

# The names of the default registry.
DOCKER_HUB = ("docker.io", "index.docker.io", "https://index.docker.io/v1/")


def registry_of(image: str) -> str:
    """The host of an image's registry."""
    first, slash, _ = image.partition("/")
    return first if slash and (set(first) & set(".:") or first == "localhost") else DOCKER_HUB[0]


def login_source(registry: RegistrySpec | None, provider: Provider, image: str) -> LoginSource:
    """How to log in to the registry of an image: as the cluster file says, if it names that
    registry; otherwise with the provider's credentials, if the registry is the provider's."""

    async def log_in() -> RegistryLogin | None:
        if registry is not None and registry.server == registry_of(image):
            return await _configured_login(registry)
        provider_login = provider.capabilities.registry_login
        if provider_login is not None and (login := await provider_login(image)):
            return login
        return None if registry is None else await _configured_login(registry)

    return log_in


async def _configured_login(registry: RegistrySpec) -> RegistryLogin:
    secret = await asyncio.to_thread(password, registry, os.environ)
    return RegistryLogin(registry.server, registry.username, secret)


def with_login(login: RegistryLogin | None, argv: Sequence[str]) -> tuple[str, bytes | None]:
    """A command for a node that runs `argv` with a login to the registry, and its standard
    input."""
    if login is None:
        return quote(argv), None
    servers = DOCKER_HUB if login.server in DOCKER_HUB else (login.server,)
    config = json.dumps({"credHelpers": dict.fromkeys(servers, "shoal")})
    credentials = {"ServerURL": servers[-1], "Username": login.username, "Secret": login.password}
    command = script_command(
        "shoal.bootstrap.containers.scripts", "with_registry_login.sh", config, *argv
    )
    return command, f"{json.dumps(credentials)}\n".encode()


async def controller_env(registry: RegistrySpec | None) -> dict[str, str]:
    """The environment that passes the password to the controller. Empty if there is no password:
    the controller can then pull only images that need none."""
    if registry is None:
        return {}
    try:
        return {PASSWORD_VARIABLE: await asyncio.to_thread(password, registry, os.environ)}
    except ConfigError as error:
        _log.info("the controller gets no registry password: %s", error)
        return {}


def password(registry: RegistrySpec, environment: Mapping[str, str]) -> str:
    """The registry's password: from the controller's environment, or as the cluster file says."""
    if secret := environment.get(PASSWORD_VARIABLE):
        return secret
    if registry.password_command:
        with _PASSWORD_COMMAND_LOCK:
            return _run_password_command(registry.password_command)
    if secret := environment.get(registry.password_env):
        return secret
    raise ConfigError(
        f"no password for the registry {registry.server}",
        why=f"the environment variable {registry.password_env} is not set",
        fix=f"export {registry.password_env}, or set shoal.registry.password_command",
    )


@functools.cache
def _run_password_command(command: str) -> str:
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
        why = f"it exited with code {done.returncode}"
    except subprocess.TimeoutExpired:
        _log.debug("shoal.registry.password_command timed out")
    # Without its output, which could hold part of the password.
    raise ConfigError(
        "shoal.registry.password_command printed no password",
        why=why,
        fix="try it in a terminal: it must print the password and nothing else",
    )
