"""Identities that AWS lists a page at a time."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from shoal.providers.aws import iam_roles
from shoal.providers.aws.client import AwsClient
from tests.providers.aws.manual_clock import StillClock

MADE = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Paged(AwsClient):
    """An account whose listings have one entry to a page."""

    def __init__(self, names: list[str]) -> None:
        super().__init__("us-west-2", StillClock())
        self._names = names

    async def call(self, service: str, operation: str, /, **params: Any) -> dict[str, Any]:
        if operation == "get_instance_profile":
            name = params["InstanceProfileName"]
            return {"InstanceProfile": {"Tags": [{"Key": "shoal-cluster", "Value": f"of {name}"}]}}
        at = int(params.get("Marker", 0))
        entry = {"InstanceProfileName": self._names[at], "CreateDate": MADE}
        more = at + 1 < len(self._names)
        page = {"InstanceProfiles": [entry], "IsTruncated": more}
        return {**page, "Marker": str(at + 1)} if more else page


async def test_every_page_of_profiles_is_read() -> None:
    found = await iam_roles.everywhere(Paged(["a", "b", "c"]))
    assert {one.name: one.cluster for one in found} == {"a": "of a", "b": "of b", "c": "of c"}
    assert found[0].made == MADE.timestamp()
