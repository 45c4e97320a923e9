"""Google's host names in the test's own process, where no hosts file can lead to the bed."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.simcloud.gce import Gce
from tests.simcloud.gce_tls import API_HOSTS


def lead_to(gce: Gce, patch: pytest.MonkeyPatch) -> None:
    """Have Google's names lead to the bed, and have this process trust it and be logged in."""
    look_up = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host in API_HOSTS:
            host, port = gce.local_address
        return look_up(host, port, *args, **kwargs)

    patch.setattr(socket, "getaddrinfo", getaddrinfo)
    patch.setenv("REQUESTS_CA_BUNDLE", str(gce.authority.bundle))
    patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(gce.credentials))
