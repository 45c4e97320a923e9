"""Listing of instance profiles, page by page."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import boto3
from botocore.exceptions import ClientError

from shoal.providers.aws import iam_roles
from shoal.providers.aws.aws_client import AwsClient
from tests.providers.aws.manual_clock import ManualClock

CREATED = datetime(2026, 1, 1, tzinfo=timezone.utc)


class PagedClient(AwsClient):
    """An account whose listings have one entry per page, and throttle the second page at first."""

    def __init__(self, names: list[str], throttled: int = 0) -> None:
        super().__init__("us-west-2", ManualClock())
        self._names = names
        self._throttled = throttled

    def _client(self, service: str) -> Any:
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        client = boto3.client("iam", region_name=self.region, **keys)
        client._make_api_call = self._respond
        return client

    def _respond(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        if operation == "GetInstanceProfile":
            name = params["InstanceProfileName"]
            return {"InstanceProfile": {"Tags": [{"Key": "shoal-cluster", "Value": f"of {name}"}]}}
        index = int(params.get("Marker", 0))
        if index and self._throttled:
            self._throttled -= 1
            error = {"Error": {"Code": "Throttling"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
            raise ClientError(error, operation)
        entry = {"InstanceProfileName": self._names[index], "CreateDate": CREATED}
        is_truncated = index + 1 < len(self._names)
        page = {"InstanceProfiles": [entry], "IsTruncated": is_truncated}
        return {**page, "Marker": str(index + 1)} if is_truncated else page


async def test_every_page_of_profiles_is_read() -> None:
    profiles = await iam_roles.list_profiles(PagedClient(["a", "b", "c"]))
    assert {p.name: p.cluster for p in profiles} == {"a": "of a", "b": "of b", "c": "of c"}
    assert profiles[0].created_at == CREATED.timestamp()


async def test_a_listing_with_a_throttled_page_has_every_profile_once() -> None:
    profiles = await iam_roles.list_profiles(PagedClient(["a", "b", "c"], throttled=2))
    assert [p.name for p in profiles] == ["a", "b", "c"]
