"""Ray's class for Google Cloud, whose HTTP client must find the certificates of the test bed."""

from __future__ import annotations

import os

os.environ.setdefault("HTTPLIB2_CA_CERTS", "/etc/ssl/certs/ca-certificates.crt")

from ray.autoscaler._private.gcp.node_provider import GCPNodeProvider

__all__ = ["GCPNodeProvider"]
