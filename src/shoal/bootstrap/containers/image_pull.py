"""The image of a node's container: how large it is, if anyone tells, and getting it there."""

from __future__ import annotations

import json
from collections.abc import Mapping

from shoal.bootstrap.containers import container_errors, oci_manifest
from shoal.bootstrap.containers.container_errors import Case
from shoal.bootstrap.containers.registry_login import LoginSource, logged_in
from shoal.core.errors import AuthError, ShoalError
from shoal.providers.model import RegistryLogin
from shoal.remote.runner import OnLine, Runner, capture

# For a registry to say how large an image is: it is asked only to be helpful.
_ASK_SECONDS = 30.0


def repository(image: str) -> str:
    """An image's name without its tag or digest."""
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]


async def pull(
    runner: Runner,
    case: Case,
    facts: Mapping[str, str],
    source: LoginSource,
    on_line: OnLine,
    *,
    seconds: float,
) -> None:
    """Have the image on the machine as the registry has it now. One that the registry does not
    give us is good enough if it is there already."""
    there = facts.get("image")
    try:
        login = await source()
    except AuthError as refusal:  # the machine may have a way in of its own
        on_line(f"{refusal}: pulled without a login", "stderr")
        login = None
    if not there:
        await _check_room(runner, case, facts, login)
    command, said = logged_in(login, [case.engine, "pull", case.image])
    done = await runner.run(command, stdin=said, on_line=on_line, timeout=seconds)
    if done.ok:
        return
    error = container_errors.no_image(case, done.tail)
    if not there:
        raise error
    on_line(f"{error.what}: what is there already is used", "stderr")


async def _check_room(
    runner: Runner, case: Case, facts: Mapping[str, str], login: RegistryLogin | None
) -> None:
    """Refuse an image that cannot fit. Where an image of the same family is there, nobody knows
    how much they share, and the engine may try."""
    free = facts.get("free_kib", "")
    if not free.isdigit() or facts.get("kin"):
        return
    needed = oci_manifest.room(await _layers(runner, case, facts, login))
    if needed > int(free) * 1024:
        raise container_errors.too_large(case, needed, int(free) * 1024)


async def _layers(
    runner: Runner, case: Case, facts: Mapping[str, str], login: RegistryLogin | None
) -> list[int]:
    """The sizes of an image's layers as its registry tells them; none where nobody does."""
    verbose = "--verbose" if case.engine == "docker" else ""
    # Some versions repeat it all in one long line.
    ask = f'{case.engine} manifest inspect {verbose} "$0" | sed \'/"Raw":/d\''
    command, said = logged_in(login, ["sh", "-c", ask, case.image])
    try:
        done, printed = await capture(runner, command, stdin=said, timeout=_ASK_SECONDS)
        found = json.loads("\n".join(printed)) if done.ok else []
    except (ShoalError, TimeoutError, ValueError):
        return []
    architecture = oci_manifest.ARCHITECTURES.get(facts.get("machine", ""), "")
    for one in found if isinstance(found, list) else [found]:
        platform = one.get("Descriptor", {}).get("platform", {}).get("architecture", "")
        if platform in ("", architecture):
            return oci_manifest.layers(one)
    return []
