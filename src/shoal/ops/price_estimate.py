"""What a cluster costs an hour once a plan is carried out, decided from data alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from shoal.core.events import Priced, PriceItem
from shoal.ops.up_plan import NOT_THERE, ObservedCluster, UpPlan
from shoal.providers.model import State
from shoal.scaling.inputs import Offering
from shoal.spec.cluster_spec import ClusterSpec

_SWITCHED_OFF = (State.STOPPED, State.STOPPING)


def price_estimate(
    spec: ClusterSpec, seen: ObservedCluster, plan: UpPlan, sold: Sequence[Offering], source: str
) -> Priced | None:
    """The price of all machines there will be, by offers from this source; None where nobody asks
    for money."""
    if spec.provider.type not in ("aws", "gcp"):
        return None
    offers = {offer.node_type: offer for offer in sold}
    ended = {i.id for i in plan.terminate}
    touched = {touch.instance.id for touch in plan.updates}
    counts: Counter[tuple[str, str, str, float | None]] = Counter()
    for instance in seen.instances:
        off = instance.state in _SWITCHED_OFF and instance.id not in touched
        if instance.id in ended or instance.state in NOT_THERE or off:
            continue
        asked = _machine(spec, instance.node_type)
        machine = instance.machine or asked
        offer = offers.get(instance.node_type, Offering(instance.node_type))
        price = instance.price_per_hour
        if price is None and asked in ("", machine):
            price = offer.price_per_hour
        counts[instance.node_type, machine, instance.market or offer.market, price] += 1
    for launch in plan.launches:
        machine = _machine(spec, launch.node_type)
        offer = offers.get(launch.node_type, Offering(launch.node_type))
        market = launch.market or offer.market
        counts[launch.node_type, machine, market, offer.price_per_hour] += launch.count
    items = tuple(
        PriceItem(count, node_type, machine, market, price)
        for (node_type, machine, market, price), count in counts.items()
    )
    known = [item.count * item.price for item in items if item.price is not None]
    return Priced(
        cluster=spec.cluster_name,
        items=items,
        per_hour=sum(known),
        complete=len(known) == len(items),
        source=source,
    )


def _machine(spec: ClusterSpec, node_type: str) -> str:
    kind = spec.node_types.get(node_type)
    config = kind.node_config if kind is not None else {}
    name = config.get("InstanceType") or str(config.get("machineType", "")).rpartition("/")[2]
    return str(name)
