"""The instance metadata service at 169.254.169.254: each machine is told about itself."""

from __future__ import annotations

import json
import secrets
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from tests.simcloud.instances import Books, Instances, Record

_TTL = "X-aws-ec2-metadata-token-ttl-seconds"
_TOKEN = "X-aws-ec2-metadata-token"
_SIX_HOURS = 21600


def _stamp(when: float) -> str:
    return datetime.fromtimestamp(when, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Metadata:
    """Answers by the address that asks, so a machine cannot ask about another."""

    def __init__(self, instances: Instances, books: Books) -> None:
        self.issued_keys: set[str] = set()
        """Access keys given to machines for their roles."""
        self._instances, self._books = instances, books
        self._tokens: dict[str, tuple[str, float]] = {}
        self._spot_ends: dict[str, float] = {}
        self._maintenance: dict[str, float] = {}
        self._rebalances: dict[str, float] = {}

    def announce_spot_end(self, instance_id: str, when: float) -> None:
        self._spot_ends[instance_id] = when

    def announce_maintenance(self, instance_id: str, when: float) -> None:
        self._maintenance[instance_id] = when

    def recommend_rebalance(self, instance_id: str, when: float) -> None:
        self._rebalances[instance_id] = when

    async def handle(self, request: web.Request) -> web.Response:
        instance_id = self._instances.by_address(request.remote or "")
        books = await self._books.inventory() if instance_id else {"instances": []}
        record = next((one for one in books["instances"] if one["id"] == instance_id), None)
        if record is None or record["http_endpoint"] == "disabled":
            return web.Response(status=403, text="no metadata for this address\n")
        if request.path == "/latest/api/token":
            return self._new_token(request, record)
        if not self._may_read(request, record):
            return web.Response(status=401, text="401 - Unauthorized\n")
        prefix, _, path = request.path.strip("/").partition("/")
        roles = {one["id"]: one["roles"] for one in books["profiles"]}
        found = _look_up(self._tree(record, roles), path) if prefix == "latest" else None
        if found is None:
            return web.Response(status=404, text="404 - Not Found\n")
        return web.Response(text=found)

    def _new_token(self, request: web.Request, record: Record) -> web.Response:
        if request.method != "PUT":
            return web.Response(status=405)
        ttl = request.headers.get(_TTL, "")
        if not ttl.isdigit() or not 1 <= int(ttl) <= _SIX_HOURS:
            return web.Response(status=400)
        token = secrets.token_urlsafe(40)
        self._tokens[token] = (record["id"], time.monotonic() + int(ttl))
        return web.Response(text=token, headers={_TTL: ttl})

    def _may_read(self, request: web.Request, record: Record) -> bool:
        token = request.headers.get(_TOKEN)
        if token is None:
            return bool(record["http_tokens"] != "required")
        owner, until = self._tokens.get(token, ("", 0.0))
        return owner == record["id"] and time.monotonic() < until

    def _tree(self, record: Record, roles: dict[str, list[str]]) -> dict[str, Any]:
        """Return everything this instance may know, as directories and values."""
        instance_id, region = record["id"], record["region"]
        private_name = f"ip-{record['private'].replace('.', '-')}.{region}.compute.internal"
        about: dict[str, Any] = {
            "ami-id": record["image"],
            "hostname": private_name,
            "instance-id": instance_id,
            "instance-life-cycle": record["market"],
            "instance-type": record["type"],
            "local-hostname": private_name,
            "local-ipv4": record["private"],
            "mac": record["mac"],
            "placement": {"availability-zone": record["zone"], "region": region},
            "events": {"maintenance": {"scheduled": json.dumps(self._events(instance_id))}},
        }
        if instance_id in self._rebalances:
            told = {"noticeTime": _stamp(self._rebalances[instance_id])}
            about["events"]["recommendations"] = {"rebalance": json.dumps(told)}
        if record["public"]:
            about["public-ipv4"] = record["public"]
        if record["profile"]:
            about["iam"] = self._identity(record["profile"], roles.get(record["profile"], []))
        if instance_id in self._spot_ends:
            end = _stamp(self._spot_ends[instance_id])
            notice = {"action": "terminate", "time": end}
            about["spot"] = {"instance-action": json.dumps(notice), "termination-time": end}
        document = {
            "accountId": "123456789012",
            "availabilityZone": record["zone"],
            "imageId": record["image"],
            "instanceId": instance_id,
            "instanceType": record["type"],
            "privateIp": record["private"],
            "region": region,
        }
        tree: dict[str, Any] = {
            "meta-data": about,
            "dynamic": {"instance-identity": {"document": json.dumps(document, indent=2)}},
        }
        if record["user_data"]:
            tree["user-data"] = record["user_data"]
        return tree

    def _events(self, instance_id: str) -> list[dict[str, str]]:
        when = self._maintenance.get(instance_id)
        if when is None:
            return []
        start = datetime.fromtimestamp(when, timezone.utc).strftime("%d %b %Y %H:%M:%S GMT")
        return [
            {
                "Code": "instance-retirement",
                "Description": "The instance is running on degraded hardware",
                "EventId": f"instance-event-{instance_id[2:]}",
                "NotBefore": start,
                "State": "active",
            }
        ]

    def _identity(self, profile: str, roles: list[str]) -> dict[str, Any]:
        arn = f"arn:aws:iam::123456789012:instance-profile/{profile}"
        credentials = {role: json.dumps(self._credentials(role)) for role in roles}
        info = {"Code": "Success", "InstanceProfileArn": arn}
        return {"info": json.dumps(info), "security-credentials": credentials}

    def _credentials(self, role: str) -> dict[str, str]:
        key = "ASIA" + role.upper().replace("-", "").replace("_", "")[:16].ljust(16, "0")
        self.issued_keys.add(key)
        now = time.time()
        return {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "LastUpdated": _stamp(now),
            "AccessKeyId": key,
            "SecretAccessKey": "not-a-secret-in-a-simulated-cloud",
            "Token": "a-session-token",
            "Expiration": _stamp(now + _SIX_HOURS),
        }


def _look_up(tree: dict[str, Any], path: str) -> str | None:
    """Return the value at a path, or the listing of a directory."""
    place: Any = tree
    for name in filter(None, path.split("/")):
        if not isinstance(place, dict) or name not in place:
            return None
        place = place[name]
    if isinstance(place, dict):
        return "\n".join(
            f"{name}/" if isinstance(value, dict) else name for name, value in place.items()
        )
    return str(place)
