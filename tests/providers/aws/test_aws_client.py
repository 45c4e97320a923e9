"""The client: credentials from an instance's metadata service, and listings with long filters."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import AuthError, TransientError
from shoal.providers.aws import instances
from shoal.providers.aws.aws_client import AwsClient, split_filters
from tests.providers.aws.manual_clock import ManualClock

KEYS = {
    "Code": "Success",
    "Type": "AWS-HMAC",
    "AccessKeyId": "AKIAROLE",
    "SecretAccessKey": "secret",
    "Token": "token",
    "Expiration": "2099-01-01T00:00:00Z",
    "LastUpdated": "2026-01-01T00:00:00Z",
}


class MetadataService(ThreadingHTTPServer):
    """Has no answer for the first `silent` requests."""

    silent = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: MetadataService

    def do_PUT(self) -> None:
        self._respond("a-token")

    def do_GET(self) -> None:
        root = "/latest/meta-data/iam/security-credentials/"
        self._respond("role" if self.path == root else json.dumps(KEYS))

    def _respond(self, text: str) -> None:
        if self.server.silent:
            self.server.silent -= 1
            self.close_connection = True
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataService]:
    server = MetadataService()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
    yield server
    server.shutdown()
    server.server_close()


class OfflineClient(AwsClient):
    """Every call returns the access key that it would be signed with."""

    def _client(self, service: str) -> Any:
        client = super()._client(service)

        def respond(operation: str, params: dict[str, Any]) -> dict[str, Any]:
            from botocore.exceptions import NoCredentialsError

            credentials = client._request_signer._credentials
            if credentials is None:
                raise NoCredentialsError
            return {"Arn": credentials.access_key}

        client._make_api_call = respond
        return client


async def test_a_head_recovers_from_a_silent_metadata_service(metadata: MetadataService) -> None:
    metadata.silent = 3
    aws = OfflineClient("us-west-2", ManualClock(), from_role=True)
    assert (await aws.call("sts", "get_caller_identity"))["Arn"] == "AKIAROLE"
    assert metadata.silent == 0


async def test_a_head_without_credentials_tries_again_with_the_next_call(
    metadata: MetadataService,
) -> None:
    metadata.silent = 10**6
    aws = OfflineClient("us-west-2", ManualClock(), from_role=True)
    with pytest.raises(TransientError, match="no credentials of the instance's role"):
        await aws.call("sts", "get_caller_identity")
    metadata.silent = 0
    assert (await aws.call("sts", "get_caller_identity"))["Arn"] == "AKIAROLE"


async def test_a_laptop_without_credentials_is_reported_at_once(
    metadata: MetadataService,
) -> None:
    metadata.silent = 10**6
    clock = ManualClock()
    began = clock.now()
    with pytest.raises(AuthError, match="no usable AWS credentials"):
        await OfflineClient("us-west-2", clock).call("sts", "get_caller_identity")
    assert clock.now() == began


def test_a_filter_with_many_values_is_split_over_calls() -> None:
    ids = [f"i-{number}" for number in range(450)]
    state = {"Name": "instance-state-name", "Values": ["running"]}
    parts = split_filters({"Filters": [{"Name": "instance-id", "Values": ids}, state], "X": 1})
    assert all(part["X"] == 1 for part in parts)
    values = [{f["Name"]: f["Values"] for f in part["Filters"]} for part in parts]
    assert all(len(v["instance-id"]) + 1 <= 200 for v in values)
    assert [id for v in values for id in v["instance-id"]] == ids
    assert all(v["instance-state-name"] == ["running"] for v in values)


class RecordingClient(AwsClient):
    """Records the ids of each call, and makes none."""

    def __init__(self) -> None:
        super().__init__("us-west-2", ManualClock())
        self.calls: list[tuple[str, list[str]]] = []

    async def call(  # type: ignore[override]
        self, service: str, operation: str, **params: Any
    ) -> Any:
        self.calls.append((operation, params.get("InstanceIds") or params["Resources"]))
        return {}


async def test_calls_on_many_instances_are_split() -> None:
    aws = RecordingClient()
    ids = [f"i-{number}" for number in range(2001)]
    await instances.request_termination(aws, ids)
    await instances.change_state(aws, "stop_instances", ids)
    await instances.tag_status(aws, dict.fromkeys(ids, "up-to-date"))
    for operation in ("terminate_instances", "stop_instances", "create_tags"):
        chunks = [some for name, some in aws.calls if name == operation]
        assert sorted(id for chunk in chunks for id in chunk) == sorted(ids)
        assert max(map(len, chunks)) == 1000


def test_a_short_filter_is_one_call() -> None:
    params = {"Filters": [{"Name": "instance-id", "Values": ["i-1"]}]}
    assert split_filters(params) == [params]
    assert split_filters({"VpcIds": ["v"]}) == [{"VpcIds": ["v"]}]
