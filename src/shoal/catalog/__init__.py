"""What machines cost: instance types of AWS and GCP with their size and prices per region.

The figures are shipped with the package and dated; they decide between machines and give
estimates, and never a bill. Only the cloud that is asked about is read.
"""

from shoal.catalog.listing import Listing, Price
from shoal.catalog.offers import offers_for
from shoal.catalog.shelf import CLOUDS, Cloud, Shelf, shelf

__all__ = ["CLOUDS", "Cloud", "Listing", "Price", "Shelf", "offers_for", "shelf"]
