"""What an instance costs, by the catalog that is shipped: a list price, not a bill."""

from __future__ import annotations

from functools import cache

from shoal.catalog.shelf import shelf


@cache
def per_hour(region: str, instance_type: str, market: str) -> float | None:
    """US dollars an hour; None where the catalog does not say."""
    listing = shelf("aws").find(instance_type)
    if listing is None:
        return None
    price = listing.price(region)
    return price.spot if market == "spot" else price.on_demand
