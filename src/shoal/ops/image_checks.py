"""What registries tell of a cluster's images, before there is a machine that would pull them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Literal

from shoal.bootstrap.containers import registry_client
from shoal.bootstrap.containers.registry_client import ARCHITECTURES
from shoal.bootstrap.containers.registry_login import login_source
from shoal.core.clock import Clock
from shoal.core.concurrency import TtlCache, run_all
from shoal.core.errors import AuthError, ShoalError
from shoal.providers.model import Finding
from shoal.providers.protocol import Provider
from shoal.spec.cluster_spec import ClusterSpec, NodeSetup

_KNOWN_SECONDS = 300.0
# A registry that is slow to answer is to hold nobody up.
_ASK_SECONDS = 6.0
_USUAL = "x86_64"


class Images:
    """The images of one cluster's containers, each asked about once."""

    def __init__(self, spec: ClusterSpec, provider: Provider, clock: Clock) -> None:
        self._spec = spec
        self._provider = provider
        self._rooms = TtlCache(clock, _KNOWN_SECONDS)

    async def findings(self) -> list[Finding]:
        """Images that are not there, or not for us. What a machine may have anyway, or get into by
        itself, is only worth a warning."""
        found = await run_all(self._judge(setup, at) for at, setup in self._setups())
        return [finding for finding in found if finding is not None]

    async def room(self, image: str, architecture: str) -> int | None:
        """How much of a disk an image takes at least, if its registry tells."""
        try:
            return await self._ask(image, architecture) or None
        except ShoalError:
            return None  # which is told elsewhere

    async def _judge(self, setup: NodeSetup, at: tuple[str, ...]) -> Finding | None:
        if setup.container is None:
            return None
        try:
            await self._ask(setup.container.image, _USUAL)
        except ShoalError as error:
            certain = setup.container.pull_before_run
            if isinstance(error, AuthError):
                certain = not setup.initialization_commands
            severity: Literal["error", "warning"] = "error" if certain else "warning"
            return Finding(severity, error.what, error.why, error.fix, at)
        return None

    async def _ask(self, image: str, architecture: str) -> int:
        async def look() -> int:
            login = await login_source(self._spec.shoal.registry, self._provider, image)()
            asked = registry_client.image_disk_bytes(image, ARCHITECTURES[architecture], login)
            try:
                return await asyncio.wait_for(asked, _ASK_SECONDS)
            except asyncio.TimeoutError:
                return 0

        return await self._rooms.get_or_load(f"{image} {architecture}", look)

    def _setups(self) -> Iterator[tuple[tuple[str, ...], NodeSetup]]:
        """How nodes are set up, and where in the spec their image is named; each image once."""
        setups: list[tuple[tuple[str, ...], NodeSetup]] = [(("head_setup",), self._spec.head_setup)]
        for name, kind in self._spec.node_types.items():
            if kind.max_workers:
                setups.append((("node_types", name, "setup"), kind.setup))
        images: set[str] = set()
        for at, setup in setups:
            if setup.container is not None and setup.container.image not in images:
                images.add(setup.container.image)
                yield (*at, "container", "image"), setup
