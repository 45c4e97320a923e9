"""What the planner is to know of a file's machines: what AWS says that they have, which is true
for types that no catalog of ours has heard of, too."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.providers.aws import foundation, launch, prices, types
from shoal.providers.aws.calls import Aws
from shoal.scaling.state import Offer
from shoal.spec.model import ClusterSpec


async def offers(aws: Aws, spec: ClusterSpec) -> Sequence[Offer]:
    """One offer for each node type whose machine the region has."""
    configs = await foundation.whole_configs(aws, spec, list(spec.node_types))
    wanted = {name: launch.instance_type(config) for name, config in configs.items()}
    known = await types.describe(aws, set(wanted.values()))
    return [
        Offer(
            node_type=name,
            market=market,
            price_per_hour=prices.per_hour(aws.region, kind, market),
            resources=known[kind].resources,
        )
        for name, kind in wanted.items()
        if kind in known
        for market in [launch.market(configs[name])]
    ]
