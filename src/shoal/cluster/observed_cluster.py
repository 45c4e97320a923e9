"""What was observed of a cluster at one moment. Data only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal.bootstrap.applied_state import AppliedState
from shoal.bootstrap.node_probe import NodeProbe
from shoal.core.errors import ShoalError
from shoal.providers.model import Instance


@dataclass(frozen=True)
class ObservedCluster:
    """The instances that the provider lists; by instance id, the probes of those that answered
    (`probes`), and the applied state that bootstrap would leave now (`desired_states`).
    With `uses_existing_hosts`, the provider picks hosts that exist instead of launching:
    `free_hosts` are those for workers, and `unusable_hosts` has the reasons why others are not.
    With `controller_launches_workers`, `up` launches only the head."""

    instances: Sequence[Instance] = ()
    probes: Mapping[str, NodeProbe] = field(default_factory=dict)
    desired_states: Mapping[str, AppliedState] = field(default_factory=dict)
    uses_existing_hosts: bool = False
    controller_launches_workers: bool = False
    free_hosts: Sequence[Instance] = ()
    unusable_hosts: Mapping[str, ShoalError] = field(default_factory=dict)
