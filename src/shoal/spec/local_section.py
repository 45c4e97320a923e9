"""Rules of the `local` provider: the file lists hosts instead of node types.

Such a cluster has one node type, which the head and all workers share.
"""

from __future__ import annotations

from typing import Any

from shoal.core.addresses import is_link_local, normalized
from shoal.spec.defaults import default_for
from shoal.spec.problems import dotted, is_placeholder
from shoal.spec.spec_draft import Draft, Origin

NODE_TYPE = "local.cluster.node"
_HOST_LIST = Origin("default", "from worker_ips")


def prepare(draft: Draft) -> None:
    """Create the node type from the hosts. Runs before defaults are applied."""
    for key in ("head_node", "worker_nodes"):
        if draft.drop(key):
            draft.warn(f"{key} is ignored", "local hosts are not launched", key)
    _create_node_type(draft)
    _normalize_addresses(draft)
    if draft.has("provider", "coordinator_address"):
        count = None
        if not draft.has("max_workers"):
            draft.error("is required with coordinator_address", "max_workers")
            draft.put(("max_workers",), 0, _HOST_LIST)
    else:
        _check_hosts(draft)
        count = len(draft.get("provider", "worker_ips", default=[]))
    _fit_counts(draft, count)


def _create_node_type(draft: Draft) -> None:
    types = draft.get("available_node_types", default={})
    for name in [name for name in types if name != NODE_TYPE]:
        draft.error(
            "is not supported for provider type local; list the hosts in provider.head_ip and "
            "provider.worker_ips instead",
            "available_node_types",
            name,
        )
    draft.put_missing(("available_node_types", NODE_TYPE), {}, default_for("local"))
    head = draft.get("head_node_type", default=NODE_TYPE)
    if head != NODE_TYPE:
        draft.error(f"must be omitted or {NODE_TYPE!r} for provider type local", "head_node_type")
    draft.put_missing(("head_node_type",), NODE_TYPE, default_for("local"))


def _normalize_addresses(draft: Draft) -> None:
    """Write IPv6 addresses in one way, since addresses are compared as text."""
    provider = draft.get("provider")
    for key in ("head_ip", "external_head_ip"):
        if isinstance(provider.get(key), str):
            provider[key] = normalized(provider[key])
            _check_scope(draft, provider[key], "provider", key)
    workers = provider.get("worker_ips")
    if isinstance(workers, list):
        provider["worker_ips"] = [normalized(w) if isinstance(w, str) else w for w in workers]
        for index, worker in enumerate(provider["worker_ips"]):
            _check_scope(draft, str(worker), "provider", "worker_ips", index)
    hosts = draft.get("shoal", "hosts")
    if hosts:
        draft.data["shoal"]["hosts"] = {normalized(host): value for host, value in hosts.items()}


def _check_scope(draft: Draft, host: str, *path: str | int) -> None:
    if is_link_local(host):
        draft.error(
            f"{host} is a link-local address, which other machines cannot use; give a global or "
            "unique local one",
            *path,
        )


def _check_hosts(draft: Draft) -> None:
    if not draft.get("provider", "head_ip"):
        draft.error("is missing: set it to the address of the head's host", "provider", "head_ip")
    if not draft.has("provider", "worker_ips"):
        draft.error(
            "is missing: set it to the list of the workers' addresses, [] for none",
            "provider",
            "worker_ips",
        )
    seen = {draft.get("provider", "head_ip"): "is also the head's address"}
    for index, host in enumerate(draft.get("provider", "worker_ips", default=[])):
        if host in seen:
            draft.error(f"{host} {seen[host]}", "provider", "worker_ips", index)
        seen.setdefault(host, "is listed twice")


def _fit_counts(draft: Draft, hosts: int | None) -> None:
    """Set the worker counts to the number of hosts, unless the file has lower ones."""
    path = ("available_node_types", NODE_TYPE)
    for key in ("min_workers", "max_workers"):
        # A generated file has the counts in the node type.
        source = (key,) if draft.has(key) else (*path, key)
        value = draft.get(*source)
        origin = draft.origin(*source)
        if value is None:
            value, origin = hosts or 0, _HOST_LIST
        elif hosts is not None and value > hosts:
            draft.warn(
                f"{dotted(source)} is {hosts}, not {value}",
                f"worker_ips lists {hosts} hosts",
                *source,
            )
            value = hosts
        draft.put((*path, key), value, origin)
    draft.put(("max_workers",), draft.get(*path, "max_workers"), draft.origin(*path, "max_workers"))
    draft.drop("min_workers")


def remove_placeholders(data: dict[str, Any]) -> list[tuple[str, ...]]:
    """Remove the placeholder counts of Ray's `local` template, and the `...` at the end of its
    list of hosts. Returns the paths of all placeholders, also of those that only the user can
    replace."""
    placeholders: list[tuple[str, ...]] = []
    for key in ("min_workers", "max_workers"):
        if is_placeholder(data.get(key)):
            del data[key]
            placeholders.append((key,))
    provider = data["provider"]
    hosts = provider.get("worker_ips")
    if isinstance(hosts, list) and "..." in hosts:
        provider["worker_ips"] = [host for host in hosts if host != "..."]
    if isinstance(hosts, list) and any(is_placeholder(host) for host in hosts):
        placeholders.append(("provider", "worker_ips"))
    if is_placeholder(provider.get("head_ip")):
        placeholders.append(("provider", "head_ip"))
    auth = data.get("auth")
    if isinstance(auth, dict) and is_placeholder(auth.get("ssh_user")):
        placeholders.append(("auth", "ssh_user"))
    return placeholders
