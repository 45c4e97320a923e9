"""Preflight checks of a cluster's container images against their registries."""

from __future__ import annotations

import asyncio
import logging
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

_log = logging.getLogger(__name__)

_CACHE_SECONDS = 300.0
# A slow registry must not delay `up`.
_REQUEST_SECONDS = 6.0
_DEFAULT_ARCHITECTURE = "x86_64"


class ImageChecks:
    """Checks the images of one cluster. Each image is requested once and cached."""

    def __init__(self, spec: ClusterSpec, provider: Provider, clock: Clock) -> None:
        self._spec = spec
        self._provider = provider
        self._sizes = TtlCache(clock, _CACHE_SECONDS)

    async def findings(self) -> list[Finding]:
        """Images that do not exist or that you may not pull. A warning where the node may have
        the image already, or logs in with its own commands."""
        findings = await run_all(self._check(setup, at) for at, setup in self._setups())
        return [finding for finding in findings if finding is not None]

    async def unpacked_size(self, image: str, architecture: str) -> int | None:
        """The disk space in bytes that an image needs at least; None if it is unknown."""
        try:
            return await self._size(image, architecture) or None
        except ShoalError as error:
            _log.debug("size of image %s is unknown: %s", image, error)  # `findings` reports it
            return None

    async def _check(self, setup: NodeSetup, at: tuple[str, ...]) -> Finding | None:
        if setup.container is None:
            return None
        try:
            await self._size(setup.container.image, _DEFAULT_ARCHITECTURE)
        except ShoalError as error:
            is_certain = setup.container.pull_before_run
            if isinstance(error, AuthError):
                is_certain = not setup.initialization_commands
            severity: Literal["error", "warning"] = "error" if is_certain else "warning"
            return Finding(severity, error.what, error.why, error.fix, at, check="container-image")
        return None

    async def _size(self, image: str, architecture: str) -> int:
        """The image's size; 0 if the registry does not answer in time."""

        async def request() -> int:
            login = await login_source(self._spec.shoal.registry, self._provider, image)()
            size = registry_client.image_disk_bytes(image, ARCHITECTURES[architecture], login)
            try:
                return await asyncio.wait_for(size, _REQUEST_SECONDS)
            except asyncio.TimeoutError:
                _log.info("no answer about %s within %.0f s", image, _REQUEST_SECONDS)
                return 0

        return await self._sizes.get_or_load(f"{image} {architecture}", request)

    def _setups(self) -> Iterator[tuple[tuple[str, ...], NodeSetup]]:
        """Each distinct image, once: the path of its setting in the spec, and its node setup."""
        setups: list[tuple[tuple[str, ...], NodeSetup]] = [(("head_setup",), self._spec.head_setup)]
        for name, node_type in self._spec.node_types.items():
            if node_type.max_workers:
                setups.append((("node_types", name, "setup"), node_type.setup))
        images: set[str] = set()
        for at, setup in setups:
            if setup.container is not None and setup.container.image not in images:
                images.add(setup.container.image)
                yield (*at, "container", "image"), setup
