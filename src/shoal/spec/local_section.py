"""The `local` provider's side of a cluster file: a list of hosts instead of kinds of machine.

Such a cluster has one node type, of which both the head and the workers are.
"""

from __future__ import annotations

from typing import Any

from shoal.spec.defaults import default_for
from shoal.spec.draft import Draft, Origin
from shoal.spec.problems import dotted, is_placeholder

NODE_TYPE = "local.cluster.node"
_HOST_LIST = Origin("default", "from worker_ips")


def prepare(draft: Draft) -> None:
    """Make the one node type from the hosts. Runs before defaults are filled in."""
    for key in ("head_node", "worker_nodes"):
        if draft.drop(key):
            draft.warn(f"{key} is ignored", "machines of your own are not made to order", key)
    _one_type(draft)
    if draft.has("provider", "coordinator_address"):
        count = None
        if not draft.has("max_workers"):
            draft.refuse("is needed beside a coordinator_address", "max_workers")
            draft.put(("max_workers",), 0, _HOST_LIST)
    else:
        _check_hosts(draft)
        count = len(draft.get("provider", "worker_ips", default=[]))
    _fit_counts(draft, count)


def _one_type(draft: Draft) -> None:
    given = draft.get("available_node_types", default={})
    for name in [name for name in given if name != NODE_TYPE]:
        draft.refuse(
            "is not supported for machines of your own; name them in provider.head_ip and "
            "provider.worker_ips instead",
            "available_node_types",
            name,
        )
    draft.put_missing(("available_node_types", NODE_TYPE), {}, default_for("local"))
    head = draft.get("head_node_type", default=NODE_TYPE)
    if head != NODE_TYPE:
        draft.refuse(
            f"must be left out, or {NODE_TYPE!r}, for machines of your own", "head_node_type"
        )
    draft.put_missing(("head_node_type",), NODE_TYPE, default_for("local"))


def _check_hosts(draft: Draft) -> None:
    if not draft.get("provider", "head_ip"):
        draft.refuse("is missing: the address of the head's machine", "provider", "head_ip")
    if not draft.has("provider", "worker_ips"):
        draft.refuse(
            "is missing: a list of the other machines' addresses, [] for none",
            "provider",
            "worker_ips",
        )
    seen = {draft.get("provider", "head_ip"): "is the head's address too"}
    for index, host in enumerate(draft.get("provider", "worker_ips", default=[])):
        if host in seen:
            draft.refuse(f"{host} {seen[host]}", "provider", "worker_ips", index)
        seen.setdefault(host, "is listed twice")


def _fit_counts(draft: Draft, hosts: int | None) -> None:
    """As many workers as there are hosts, unless the file says otherwise, and never more."""
    path = ("available_node_types", NODE_TYPE)
    for key in ("min_workers", "max_workers"):
        # A file that was prepared before has the counts in the type already.
        source = (key,) if draft.has(key) else (*path, key)
        value = draft.get(*source)
        origin = draft.origin(*source)
        if value is None:
            value, origin = hosts or 0, _HOST_LIST
        elif hosts is not None and value > hosts:
            draft.warn(
                f"{dotted(source)} is {hosts}, not {value}",
                f"worker_ips lists {hosts} machines",
                *source,
            )
            value = hosts
        draft.put((*path, key), value, origin)
    draft.put(("max_workers",), draft.get(*path, "max_workers"), draft.origin(*path, "max_workers"))
    draft.drop("min_workers")


def without_placeholders(data: dict[str, Any]) -> list[tuple[str, ...]]:
    """Take out of a template's `local` file the counts that are still to be filled in, and the
    dots that end its list of hosts. Returns the paths of what was taken, and of the placeholders
    that only a person can replace."""
    found: list[tuple[str, ...]] = []
    for key in ("min_workers", "max_workers"):
        if is_placeholder(data.get(key)):
            del data[key]
            found.append((key,))
    provider = data["provider"]
    hosts = provider.get("worker_ips")
    if isinstance(hosts, list) and "..." in hosts:
        provider["worker_ips"] = [host for host in hosts if host != "..."]
    if isinstance(hosts, list) and any(is_placeholder(host) for host in hosts):
        found.append(("provider", "worker_ips"))
    if is_placeholder(provider.get("head_ip")):
        found.append(("provider", "head_ip"))
    auth = data.get("auth")
    if isinstance(auth, dict) and is_placeholder(auth.get("ssh_user")):
        found.append(("auth", "ssh_user"))
    return found
