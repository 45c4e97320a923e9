"""Resolves where a node type can be launched: its zones, and the network and subnetwork of its
instances. Creates nothing; see `cluster_resources` for that."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.concurrency import TtlCache
from shoal.core.errors import ConfigError
from shoal.providers.gcp.gcp_client import GcpClient
from shoal.providers.gcp.project_settings import region_of, zones_of
from shoal.providers.vm.launch_options import Subnet

_CACHE_SECONDS = 3600.0
_ZONE_IN_URL = re.compile(r"zones/([^/]+)/")
_PROJECT_IN_URL = re.compile(r"projects/([^/]+)/")
_DEFAULT_NETWORK = "default"


class LaunchLocations:
    """The zones and subnetworks of one region of a project."""

    def __init__(self, gcp: GcpClient, settings: Mapping[str, Any]) -> None:
        self._gcp = gcp
        self._settings = settings
        self.region = region_of(settings)
        self._cache = TtlCache(gcp.clock, _CACHE_SECONDS)

    async def merged_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """A `node_config`, completed by the instance template that it names, or with the machine
        type of its machine image. What the file itself says wins."""
        own = {key: value for key, value in config.items() if value is not None}
        template = str(own.pop("sourceInstanceTemplate", "")).rpartition("/")[2]
        if template:
            record = await self._gcp.compute("GET", f"global/instanceTemplates/{template}")
            return {**record["properties"], **own}
        image = str(own.get("sourceMachineImage", "")).rpartition("/")[2]
        if image and "machineType" not in own:
            record = await self._gcp.compute("GET", f"global/machineImages/{image}")
            own["machineType"] = record["instanceProperties"]["machineType"]
        return own

    async def subnets(
        self, config: Mapping[str, Any], head: Mapping[str, Any] | None = None
    ) -> list[Subnet]:
        """Where a node type with this `node_config` can be launched, one entry for each zone. A
        worker that the file gives no network uses that of the `head`, which is Google's record."""
        zones = await self._zones(config)
        if config.get("networkInterfaces"):
            return [Subnet("", zone, await self.network(config)) for zone in zones]
        if head is not None:
            interface = head["networkInterfaces"][0]
            network, name = (
                str(interface.get(key) or "").rpartition("/")[2]
                for key in ("network", "subnetwork")
            )
            if name:
                return [Subnet(name, zone, network) for zone in zones]
        record = await self._default_subnetwork()
        network = str(record["network"]).rpartition("/")[2]
        return [Subnet(str(record["name"]), zone, network) for zone in zones]

    async def network(self, config: Mapping[str, Any]) -> str:
        """The network of a node type's first interface; empty if it is another project's (a shared
        VPC), whose rules are not ours to change."""
        interfaces = config.get("networkInterfaces")
        if not interfaces:
            return str((await self._default_subnetwork())["network"]).rpartition("/")[2]
        interface = interfaces[0]
        for key in ("network", "subnetwork"):
            match = _PROJECT_IN_URL.search(str(interface.get(key) or ""))
            if match and match[1] != self._gcp.project:
                return ""
        if interface.get("network"):
            return str(interface["network"]).rpartition("/")[2]
        name = str(interface.get("subnetwork") or "").rpartition("/")[2]
        if not name:
            return _DEFAULT_NETWORK
        record = await self._gcp.compute("GET", f"regions/{self.region}/subnetworks/{name}")
        return str(record["network"]).rpartition("/")[2]

    async def ip_ranges(self) -> list[str]:
        """The address ranges of the region's subnetworks."""
        listed = await self._gcp.items(f"regions/{self.region}/subnetworks")
        return sorted({str(s["ipCidrRange"]) for s in listed if s.get("ipCidrRange")})

    async def _zones(self, config: Mapping[str, Any]) -> Sequence[str]:
        """The zones to try, in order. Existing disks can be attached only in their zone."""
        sources = [str(disk.get("source") or "") for disk in config.get("disks") or ()]
        of_disks = [match[1] for match in map(_ZONE_IN_URL.search, sources) if match]
        if of_disks:
            return list(dict.fromkeys(of_disks))[:1]
        return await self.zones()

    async def zones(self) -> Sequence[str]:
        """The zones of the file, in its order, or else all of the region."""
        return zones_of(self._settings) or await self.region_zones()

    async def region_zones(self) -> list[str]:
        """All zones of the region."""

        async def load() -> list[str]:
            region = await self._gcp.compute("GET", f"regions/{self.region}")
            return sorted(str(url).rpartition("/")[2] for url in region.get("zones") or ())

        return await self._cache.get_or_load("zones", load)

    async def _default_subnetwork(self) -> dict[str, Any]:
        """The subnetwork for instances to which the file gives none: that of the default network,
        or else, as in Ray, the first of the region."""

        async def load() -> dict[str, Any]:
            listed = await self._gcp.items(f"regions/{self.region}/subnetworks")
            in_default = [s for s in listed if str(s["network"]).endswith(f"/{_DEFAULT_NETWORK}")]
            if not listed:
                raise ConfigError(
                    f"the project has no subnetwork in {self.region}",
                    why="the file names no network",
                    fix="create one: gcloud compute networks create default\n"
                    "or name one: node_config: {networkInterfaces: [{subnetwork: "
                    f"regions/{self.region}/subnetworks/NAME}}]}}",
                )
            return (in_default or listed)[0]

        return await self._cache.get_or_load("subnetwork", load)
