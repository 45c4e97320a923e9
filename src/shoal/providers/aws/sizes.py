"""What the planner is to know of a file's machines: what AWS says that they have, which is true
for types that no catalog of ours has heard of, too."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.parallel import side_by_side
from shoal.providers.aws import foundation, launch
from shoal.providers.aws.calls import Aws
from shoal.providers.aws.prices import Prices
from shoal.scaling.state import Offer
from shoal.spec.model import ClusterSpec


async def offers(aws: Aws, prices: Prices, spec: ClusterSpec) -> Sequence[Offer]:
    """One offer for each node type whose machine the region has."""
    configs = await foundation.whole_configs(aws, spec, sorted(spec.node_types))
    wanted = {name: launch.instance_type(config) for name, config in configs.items()}
    markets = {name: launch.market(config) for name, config in configs.items()}
    full = {kind for name, kind in wanted.items() if markets[name] != "spot"}
    spot = {kind for name, kind in wanted.items() if markets[name] == "spot"}
    known, _ = await side_by_side(
        [foundation.machines(aws, spec, configs), prices.learn(full, spot)]
    )
    return [
        Offer(
            node_type=name,
            market=markets[name],
            price_per_hour=prices.per_hour(kind, markets[name]),
            resources=known[kind].resources,
        )
        for name, kind in wanted.items()
        if known is not None and kind in known
    ]
