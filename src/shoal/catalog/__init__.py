"""The price catalog: instance types of AWS and GCP with their sizes and prices per region.

It is shipped with the package and dated. Use it for estimates and to compare instance types, never
as a bill. Each cloud's table is read on first use.
"""

from shoal.catalog.instance_type import InstanceType, Price
from shoal.catalog.node_type_prices import catalog_source, offerings_for
from shoal.catalog.price_table import CLOUDS, Cloud, PriceTable, load_price_table

__all__ = [
    "CLOUDS",
    "Cloud",
    "InstanceType",
    "Price",
    "PriceTable",
    "catalog_source",
    "load_price_table",
    "offerings_for",
]
