"""The listed hosts of a cluster, as the planner needs them: one node type for all hosts with equal
resources, and no more workers than there are usable hosts. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shoal.controller.lifecycle import Node
from shoal.core.node_phase import Phase
from shoal.scaling import LaunchFailure, PlannedLaunch
from shoal.scaling.demand import Resources
from shoal.spec.cluster_spec import ClusterSpec

_UNUSABLE_PHASES = (Phase.TERMINATING, Phase.FAILED)
# Hosts of one kind differ a little in their memory, and count as equal.
_MEMORY = frozenset({"memory", "object_store_memory"})


@dataclass(frozen=True)
class WorkerHost:
    """A host that can become a worker. `resources` are what its Ray will have; None while they are
    unknown."""

    node_type: str
    resources: Resources | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _HostType:
    """Hosts of a node type with equal resources, None if those are unknown, and equal labels."""

    name: str
    node_type: str
    resources: Resources | None
    labels: Mapping[str, str]
    hosts: tuple[str, ...]


class HostTypes:
    """The planner's node types for these hosts. Where all hosts of a node type are equal, that is
    the node type itself."""

    def __init__(self, spec: ClusterSpec, hosts: Mapping[str, WorkerHost]) -> None:
        self._spec = spec
        types = [t for name in spec.node_types for t in _split(name, hosts)]
        self._types = {t.name: t for t in types}
        self._type_of_host = {id: t.name for t in types for id in t.hosts}

    def type_of(self, host: str, node_type: str) -> str:
        """The planner's type of a node of this type on this host."""
        return self._type_of_host.get(host, node_type)

    def type_of_zone(self, node_type: str, zone: str) -> str:
        """The planner's type of a launch that `real_launch` returned."""
        return zone if zone in self._types else node_type

    def spec(self, nodes: Mapping[str, Node], unreachable: Collection[str]) -> ClusterSpec:
        """The spec for the planner. A host that does not answer, or that is still being cleaned up,
        is not usable; but one with a node counts even if it does not answer at the moment, because
        otherwise its node would make another one surplus."""

        def is_usable(host: str) -> bool:
            node = nodes.get(host)
            return host not in unreachable if node is None else node.phase not in _UNUSABLE_PHASES

        usable = {name: sum(map(is_usable, t.hosts)) for name, t in self._types.items()}
        used = Counter(self._type_of_host[id] for id in nodes if id in self._type_of_host)
        types = dict(self._spec.node_types)
        for name, node_type in self._spec.node_types.items():
            of_type = [t for t in self._types.values() if t.node_type == name]
            minimums = _distribute(node_type.min_workers, [t.name for t in of_type], used, usable)
            for t in of_type:
                types[t.name] = replace(
                    node_type,
                    name=t.name,
                    min_workers=minimums[t.name],
                    max_workers=min(node_type.max_workers, usable[t.name]),
                    resources=node_type.resources if t.resources is None else t.resources,
                    labels={**node_type.labels, **t.labels},
                )
        limit = min(self._spec.scaling.max_workers, sum(usable.values()))
        scaling = replace(self._spec.scaling, max_workers=limit)
        return replace(self._spec, node_types=types, scaling=scaling)

    def failure(self, failure: LaunchFailure) -> LaunchFailure:
        """A failure of a launch that `real_launch` returned, in the planner's terms."""
        if failure.zone not in self._types:
            return failure
        return replace(failure, node_type=failure.zone, zone="")

    def blocked(self, blocked: Mapping[str, str]) -> dict[str, str]:
        """Blocked node types in the planner's terms."""
        return dict(blocked) | {
            name: blocked[t.node_type] for name, t in self._types.items() if t.node_type in blocked
        }

    def real_launch(self, launch: PlannedLaunch) -> PlannedLaunch:
        """A launch with its real node type, and the hosts to choose from where they differ. The
        planner's type is kept as the zone."""
        host_type = self._types.get(launch.node_type)
        if host_type is None or len(self._types) == 1:
            return launch
        return replace(
            launch,
            node_type=host_type.node_type,
            zone=host_type.name,
            hosts=host_type.hosts,
        )


def _split(node_type: str, hosts: Mapping[str, WorkerHost]) -> list[_HostType]:
    """The host types of a node type. A host whose resources are unknown is taken for one of the
    most frequent kind."""
    groups: dict[str, _HostType] = {}
    unknown: tuple[str, ...] = ()
    for id, host in sorted(hosts.items()):
        if host.node_type != node_type:
            continue
        if host.resources is None:
            unknown += (id,)
            continue
        resources = {k: v for k, v in host.resources.items() if not k.startswith("node:")}
        key = repr((_rounded(resources), sorted(host.labels.items())))
        last = groups.get(key)
        groups[key] = _HostType(
            node_type,
            node_type,
            _smaller(resources, last.resources) if last and last.resources else resources,
            host.labels,
            (*last.hosts, id) if last else (id,),
        )
    types = sorted(groups.values(), key=lambda t: (-len(t.hosts), t.hosts))
    if not types:
        return [_HostType(node_type, node_type, None, {}, unknown)] if unknown else []
    first, *others = types
    return [
        replace(first, hosts=(*first.hosts, *unknown)),
        *(
            replace(t, name=f"{node_type} {number} ({_describe(t.resources or {})})")
            for number, t in enumerate(others, start=2)
        ),
    ]


def _distribute(
    count: int, names: Sequence[str], used: Mapping[str, int], usable: Mapping[str, int]
) -> dict[str, int]:
    """`count` workers over host types: those that have nodes first, so that the nodes stay."""
    shares = dict.fromkeys(names, 0)
    for limits in (used, usable):
        for name in names:
            share = min(count, limits.get(name, 0) - shares[name], usable[name] - shares[name])
            if share > 0:
                shares[name] += share
                count -= share
    return shares


def _rounded(resources: Resources) -> list[tuple[str, float]]:
    """Resources with their memory as a rounded logarithm, in steps of a fifth."""
    return sorted(
        (name, round(4 * math.log2(amount)) if name in _MEMORY and amount > 0 else amount)
        for name, amount in resources.items()
    )


def _smaller(resources: Resources, others: Resources) -> dict[str, float]:
    return {name: min(amount, others[name]) for name, amount in resources.items()}


def _describe(resources: Resources) -> str:
    amounts = [f"{amount:g} {name}" for name, amount in resources.items() if name not in _MEMORY]
    if "memory" in resources:
        amounts.append(f"{resources['memory'] / 2**30:.0f} GiB")
    return ", ".join(sorted(amounts))
