"""What machines cost: instance types of AWS and GCP with their size and prices per region.

The figures are shipped with the package and dated; they decide between machines and give
estimates, and never a bill. Only the cloud that is asked about is read.
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
