"""A provider for Nimbus, a made-up cloud with a small HTTP API. It is the example of
docs/guides/writing-a-provider.md, and the tests run it."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.core.clock import Clock
from shoal.core.concurrency import run_all
from shoal.core.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    ProviderError,
    QuotaError,
    TransientError,
)
from shoal.core.events import Emit
from shoal.core.node_phase import Role
from shoal.core.polling import PollUntilDeadline
from shoal.providers import register_provider
from shoal.providers.model import Finding, Instance, LaunchRequest, State
from shoal.providers.protocol import Capabilities, Provider
from shoal.remote.known_hosts import SharedHostKeys
from shoal.remote.ssh_runner import SshRunner
from shoal.remote.ssh_target import SshTarget, control_directory
from shoal.scaling.inputs import Offering
from shoal.spec.cluster_spec import ClusterSpec

# Callers act on the class of an error: one table maps the codes of the cloud.
ERRORS: dict[int, type[ProviderError] | type[ConfigError]] = {
    400: ConfigError,
    401: AuthError,
    402: QuotaError,
    429: TransientError,
    507: CapacityError,
}


class NimbusProvider(Provider):
    """One cluster on Nimbus. Labels on the instances are its only record."""

    def __init__(
        self, spec: ClusterSpec, home: Path, clock: Clock, emit: Emit, *, on_head: bool
    ) -> None:
        self._url = str(spec.provider.settings["url"])
        self._clock = clock
        self._known_hosts = home / "nimbus" / spec.cluster_name / "known_hosts"
        self._runners: dict[str, SshRunner] = {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            stops_instances=False,  # Nimbus can only terminate
            on_lease_expired="sudo -n shutdown -h now",
            host_keys=SharedHostKeys(self._known_hosts),
        )

    async def preflight(self, spec: ClusterSpec) -> Sequence[Finding]:
        prices = await self._call("GET", "/sizes")
        return [
            Finding("error", f"Nimbus has no size {size!r}", fix=f"use {' or '.join(prices)}")
            for node_type in spec.node_types.values()
            if (size := node_type.node_config.get("size")) not in prices
        ]

    async def offerings(self, spec: ClusterSpec) -> Sequence[Offering]:
        prices = await self._call("GET", "/sizes")
        sizes = {name: t.node_config.get("size") for name, t in spec.node_types.items()}
        return [Offering(name, price_per_hour=prices.get(size)) for name, size in sizes.items()]

    async def launch(
        self, spec: ClusterSpec, requests: Sequence[LaunchRequest]
    ) -> Sequence[Instance]:
        async def launch_one(request: LaunchRequest) -> list[Instance]:
            labels = {"node_type": request.node_type, "role": request.role}
            body = {
                "token": request.token,  # the same token never launches twice
                "count": request.count,
                "size": spec.node_types[request.node_type].node_config["size"],
                "labels": {"cluster": spec.cluster_name, **labels},
                "ssh_keys": _public_keys(spec),  # on the head, that is the cluster's own key
            }
            return [_instance(record) for record in await self._call("POST", "/instances", body)]

        groups = await run_all(launch_one(request) for request in requests)
        return [instance for group in groups for instance in group]

    async def list_instances(
        self, cluster: str | None = None, role: Role | None = None
    ) -> Sequence[Instance]:
        query = f"?cluster={urllib.parse.quote(cluster)}" if cluster else ""
        instances = [_instance(record) for record in await self._call("GET", f"/instances{query}")]
        return [i for i in instances if role in (None, i.role)]

    async def terminate(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        existing = {i.id for i in await self.list_instances(spec.cluster_name)}
        ids = existing & {i.id for i in instances}
        await run_all(self._call("DELETE", f"/instances/{id}") for id in ids)
        async for _ in PollUntilDeadline(self._clock, timeout=300, interval=1):
            existing = {i.id for i in await self.list_instances(spec.cluster_name)}
            if not existing & {i.id for i in instances}:
                return
        raise TransientError("Nimbus has not terminated all instances", fix="try again")

    def runner(self, spec: ClusterSpec, instance: Instance) -> SshRunner:
        self._known_hosts.parent.mkdir(parents=True, exist_ok=True)
        key = spec.auth.ssh_private_key
        target = SshTarget(
            host=instance.address,
            user=spec.auth.ssh_user,
            key=Path(key).expanduser() if key else None,
            known_hosts=self._known_hosts,
            host_key_alias=instance.id,
            control_dir=control_directory(),
        )
        return self._runners.setdefault(instance.id, SshRunner(instance.name, target))

    async def _call(self, method: str, path: str, body: object = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self._url + path, data, method=method)
        try:
            with await asyncio.to_thread(urllib.request.urlopen, request, timeout=60) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            kind = ERRORS.get(error.code, ProviderError)
            raise kind(f"Nimbus refused {method} {path}", why=str(error)) from None
        except OSError as error:
            raise TransientError("Nimbus does not answer", why=str(error)) from None


def _public_keys(spec: ClusterSpec) -> list[str]:
    file = Path(f"{spec.auth.ssh_private_key}.pub").expanduser()
    return [file.read_text().strip()] if file.exists() else []


def _instance(record: dict[str, Any]) -> Instance:
    labels = record["labels"]
    return Instance(
        id=record["id"],
        cluster=labels["cluster"],
        name="head" if labels["role"] == "head" else f"worker-{record['id']}",
        node_type=labels["node_type"],
        role=labels["role"],
        state=State(record["state"]),
        address=record["address"],
        created_at=record["created_at"],
        price_per_hour=record["price_per_hour"],
    )


register_provider("nimbus", NimbusProvider)
