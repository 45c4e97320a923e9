"""Pulls the image of a node's container, after a check that it fits on the disk."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from shoal.bootstrap.containers import container_errors
from shoal.bootstrap.containers.container_errors import ContainerContext
from shoal.bootstrap.containers.registry_client import ARCHITECTURES, disk_bytes, layer_sizes
from shoal.bootstrap.containers.registry_login import LoginSource, with_login
from shoal.core.errors import AuthError, ShoalError
from shoal.core.logs import suppress_and_log
from shoal.providers.model import RegistryLogin
from shoal.remote.runner import OnLine, Runner, capture
from shoal.remote.scripts import read_script

_log = logging.getLogger(__name__)

# The size is needed for a check only, so a slow registry is not waited for.
_MANIFEST_SECONDS = 30.0


def repository(image: str) -> str:
    """An image's name without its tag or digest."""
    name = image.partition("@")[0]
    parent, slash, last = name.rpartition("/")
    return parent + slash + last.partition(":")[0]


async def pull(
    runner: Runner,
    context: ContainerContext,
    facts: Mapping[str, str],
    login_source: LoginSource,
    on_line: OnLine,
    *,
    seconds: float,
) -> None:
    """Pull the current image to the node. If that fails, an image of that name that is already
    there is used. `facts` are those of `probe_runtime.sh`."""
    exists = facts.get("image")
    try:
        login = await login_source()
    except AuthError as refusal:  # the host may have a login of its own
        on_line(f"{refusal}: pulling without a login", "stderr")
        login = None
    if not exists:
        await _check_disk_space(runner, context, facts, login)
    command, stdin = with_login(login, [context.runtime, "pull", context.image])
    done = await runner.run(command, stdin=stdin, on_line=on_line, timeout=seconds)
    if done.ok:
        return
    error = container_errors.pull_error(context, done.tail)
    if not exists:
        raise error
    _log.info("%s: using the local image %s: %s", context.node, context.image, error)
    on_line(f"{error.what}: using the image that is already on the host", "stderr")


async def _check_disk_space(
    runner: Runner,
    context: ContainerContext,
    facts: Mapping[str, str],
    login: RegistryLogin | None,
) -> None:
    """Refuse an image that cannot fit. If the host has an image of the same repository, the two
    may share layers, so this check is skipped."""
    free = facts.get("free_kib", "")
    if not free.isdigit() or facts.get("same_repository"):
        return
    needed = disk_bytes(await _layer_sizes(runner, context, facts, login))
    if needed > int(free) * 1024:
        raise container_errors.image_too_large_error(context, needed, int(free) * 1024)


async def _layer_sizes(
    runner: Runner,
    context: ContainerContext,
    facts: Mapping[str, str],
    login: RegistryLogin | None,
) -> list[int]:
    """The sizes of an image's layers as its registry reports them; empty if unknown."""
    script = read_script("shoal.bootstrap.containers.scripts", "inspect_manifest.sh")
    command, stdin = with_login(login, ["sh", "-c", script, "sh", context.runtime, context.image])
    document = None
    with suppress_and_log(_log, "read the manifest", ShoalError, TimeoutError, ValueError):
        done, output = await capture(runner, command, stdin=stdin, timeout=_MANIFEST_SECONDS)
        document = json.loads("\n".join(output)) if done.ok else []
    architecture = ARCHITECTURES.get(facts.get("architecture", ""), "")
    for manifest in document if isinstance(document, list) else [document or {}]:
        platform = manifest.get("Descriptor", {}).get("platform", {}).get("architecture", "")
        if platform in ("", architecture):
            return layer_sizes(manifest)
    return []
