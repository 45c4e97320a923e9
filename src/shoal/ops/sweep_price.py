"""What a sweep costs: the cluster's price now, at most, and over the time that is left."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from shoal.catalog import catalog_source, offerings_for
from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import ShoalError
from shoal.costs.estimate import PlannedNodes, estimate
from shoal.ops.context import Context
from shoal.providers.model import State
from shoal.spec.cluster_spec import ClusterSpec

Resources = Mapping[str, float]

_log = logging.getLogger(__name__)

_REFRESH_S = 60.0
_BILLED = (State.PENDING, State.RUNNING)


class SweepPrice:
    """Adds up the cluster's price from now on. All values are None where instances cost nothing
    or their price is not known."""

    def __init__(self, ctx: Context, spec: ClusterSpec) -> None:
        self._ctx, self._spec = ctx, spec
        self._cluster = ClusterHandle.of(ctx, spec)
        self._costs_money = self._cluster.capabilities.costs_money
        self._cost = 0.0
        self._refreshed_at: float | None = None
        self._added_at = ctx.clock.monotonic()
        self.per_hour: float | None = None

    async def refresh(self) -> None:
        """Read the price of the instances, at most once a minute."""
        now = self._ctx.clock.monotonic()
        if not self._costs_money:
            return
        if self._refreshed_at is not None and now - self._refreshed_at < _REFRESH_S:
            return
        self._refreshed_at = now
        try:
            instances = await self._cluster.instances()
        except ShoalError as error:
            _log.info("could not read the cluster's price: %s", error)
            return
        self._add()
        prices = [i.price_per_hour for i in instances if i.state in _BILLED]
        known = [price for price in prices if price is not None]
        self.per_hour = math.fsum(known) if known else None

    def cost(self) -> float | None:
        """What the cluster has cost so far."""
        self._add()
        return None if self.per_hour is None else self._cost

    def total(self, seconds_left: float | None) -> float | None:
        """The cost so far and for the time that is left, at the current price."""
        cost = self.cost()
        if cost is None or self.per_hour is None or seconds_left is None:
            return None
        return cost + self.per_hour * seconds_left / 3600

    def max_per_hour(self) -> float | None:
        """The price of the cluster with all the workers that it may have."""
        return max_price_per_hour(self._spec) if self._costs_money else None

    def if_all_take(self, seconds: float | None, runs: int, run: Resources) -> float | None:
        """The price of so many runs on the whole cluster if each takes `seconds`."""
        per_hour = self.max_per_hour()
        if per_hour is None or seconds is None:
            return None
        at_once = runs_at_once(self._spec, run)
        return per_hour * seconds / 3600 * math.ceil(runs / at_once) if at_once else None

    def _add(self) -> None:
        now = self._ctx.clock.monotonic()
        self._cost += (self.per_hour or 0.0) * (now - self._added_at) / 3600
        self._added_at = now


def runs_at_once(spec: ClusterSpec, run: Resources) -> int:
    """How many runs with these resources fit on the cluster with all of its workers; 0 if the
    resources of a node type are not known."""
    declared = {name: t.resources for name, t in spec.node_types.items() if t.resources}
    known = {o.node_type: o.resources for o in offerings_for(spec)} | declared

    def fit(name: str) -> int:
        resources = known.get(name) or {}
        counts = [resources.get(n, 0) // amount for n, amount in run.items() if amount]
        return int(min(counts, default=0))

    workers = {name: t.max_workers for name, t in spec.node_types.items() if t.max_workers}
    if not all(known.get(name) for name in (spec.head_node_type, *workers)):
        return 0
    total, left = fit(spec.head_node_type), spec.scaling.max_workers
    for name in sorted(workers, key=fit, reverse=True):
        total += fit(name) * min(workers[name], left)
        left -= min(workers[name], left)
    return total


def max_price_per_hour(spec: ClusterSpec) -> float | None:
    """By the shipped catalog; None if a price is missing. Of the mixes of workers that the limits
    allow, the most expensive."""
    offerings, source = offerings_for(spec), catalog_source(spec)
    head = estimate(spec, [PlannedNodes(spec.head_node_type)], offerings, source)
    if not head.complete:
        return None
    total, left = head.per_hour, spec.scaling.max_workers
    prices = []
    for name, node_type in spec.node_types.items():
        if node_type.max_workers:
            one = estimate(spec, [PlannedNodes(name)], offerings, source)
            if not one.complete:
                return None
            prices.append((one.per_hour, node_type.max_workers))
    for price, count in sorted(prices, reverse=True):
        total += price * min(count, left)
        left -= min(count, left)
    return total
