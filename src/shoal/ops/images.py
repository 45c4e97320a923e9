"""What registries tell of a cluster's images, before there is a machine that would pull them."""

from __future__ import annotations

import asyncio

from shoal.bootstrap import registry_api
from shoal.bootstrap.manifest import ARCHITECTURES
from shoal.bootstrap.registry import login_source
from shoal.clock import Clock
from shoal.errors import ShoalError
from shoal.parallel import Shared, side_by_side
from shoal.providers.base import Finding, Provider
from shoal.spec.model import ClusterSpec

_KNOWN_SECONDS = 300.0
# A registry that is slow to answer is to hold nobody up.
_ASK_SECONDS = 6.0
_USUAL = "x86_64"


class Images:
    """The images of one cluster's containers, each asked about once."""

    def __init__(self, spec: ClusterSpec, provider: Provider, clock: Clock) -> None:
        self._spec = spec
        self._provider = provider
        self._rooms = Shared(clock, _KNOWN_SECONDS)

    async def findings(self) -> list[Finding]:
        """Images that are not there, or not for us."""
        found = await side_by_side(self._judge(image, at) for image, at in self._places().items())
        return [finding for finding in found if finding is not None]

    async def room(self, image: str, architecture: str) -> int | None:
        """How much of a disk an image takes at least, if its registry tells."""
        try:
            return await self._ask(image, architecture) or None
        except ShoalError:
            return None  # which is told elsewhere

    async def _judge(self, image: str, at: tuple[str, ...]) -> Finding | None:
        try:
            await self._ask(image, _USUAL)
        except ShoalError as error:
            return Finding("error", error.what, error.why, error.fix, at)
        return None

    async def _ask(self, image: str, architecture: str) -> int:
        async def look() -> int:
            login = await login_source(self._spec.shoal.registry, self._provider, image)()
            asked = registry_api.room(image, ARCHITECTURES[architecture], login)
            try:
                return await asyncio.wait_for(asked, _ASK_SECONDS)
            except asyncio.TimeoutError:
                return 0

        return await self._rooms.get(f"{image} {architecture}", look)

    def _places(self) -> dict[str, tuple[str, ...]]:
        """The images, and where in the spec each is named."""
        found: dict[str, tuple[str, ...]] = {}
        for name, node_type in self._spec.node_types.items():
            if node_type.setup.container and (node_type.max_workers or node_type.min_workers):
                at = ("node_types", name, "setup", "container", "image")
                found[node_type.setup.container.image] = at
        if self._spec.head_setup.container:
            found[self._spec.head_setup.container.image] = ("head_setup", "container", "image")
        return found
