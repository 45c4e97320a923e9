"""The instance metadata service at 169.254.169.254."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from tests.simcloud.instances import Instances, InstanceStore, Record

_TTL = "X-aws-ec2-metadata-token-ttl-seconds"
_TOKEN = "X-aws-ec2-metadata-token"
_SIX_HOURS = 21600


def _stamp(when: float) -> str:
    return datetime.fromtimestamp(when, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Metadata:
    """Responds by source address, so that an instance can read only its own metadata."""

    def __init__(self, instances: Instances, store: InstanceStore) -> None:
        self.issued_keys: dict[str, str] = {}
        """Access keys issued to instances, with the roles that they are for."""
        self._instances, self._store = instances, store
        self._tokens: dict[str, tuple[str, float]] = {}
        self._spot_ends: dict[str, float] = {}
        self._maintenance: dict[str, float] = {}
        self._rebalances: dict[str, float] = {}
        self._silent_until = 0.0

    def announce_spot_end(self, instance_id: str, when: float) -> None:
        self._spot_ends[instance_id] = when

    def announce_maintenance(self, instance_id: str, when: float) -> None:
        self._maintenance[instance_id] = when

    def recommend_rebalance(self, instance_id: str, when: float) -> None:
        self._rebalances[instance_id] = when

    def silence(self, seconds: float) -> None:
        """Answer no request for this long; 0 ends it."""
        self._silent_until = time.monotonic() + seconds

    async def handle(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self._silent_until - time.monotonic())  # the client gives up before
        instance_id = self._instances.by_address(request.remote or "")
        inventory = await self._store.inventory() if instance_id else {"instances": []}
        record = next((r for r in inventory["instances"] if r["id"] == instance_id), None)
        if record is None or record["http_endpoint"] == "disabled":
            return web.Response(status=403, text="no metadata for this address\n")
        if request.path == "/latest/api/token":
            return self._new_token(request, record)
        if not self._may_read(request, record):
            return web.Response(status=401, text="401 - Unauthorized\n")
        prefix, _, path = request.path.strip("/").partition("/")
        roles = {profile["id"]: profile["roles"] for profile in inventory["profiles"]}
        value = _look_up(self._tree(record, roles), path) if prefix == "latest" else None
        if value is None:
            return web.Response(status=404, text="404 - Not Found\n")
        return web.Response(text=value)

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
        """Return the metadata of an instance, as nested directories and values."""
        instance_id, region = record["id"], record["region"]
        private_name = f"ip-{record['private'].replace('.', '-')}.{region}.compute.internal"
        meta_data: dict[str, Any] = {
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
            notice = {"noticeTime": _stamp(self._rebalances[instance_id])}
            meta_data["events"]["recommendations"] = {"rebalance": json.dumps(notice)}
        if record["public"]:
            meta_data["public-ipv4"] = record["public"]
        if record["profile"]:
            meta_data["iam"] = self._identity(record["profile"], roles.get(record["profile"], []))
        if instance_id in self._spot_ends:
            end = _stamp(self._spot_ends[instance_id])
            notice = {"action": "terminate", "time": end}
            meta_data["spot"] = {"instance-action": json.dumps(notice), "termination-time": end}
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
            "meta-data": meta_data,
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
        credentials = {role: json.dumps(self.credentials(role)) for role in roles}
        info = {"Code": "Success", "InstanceProfileArn": arn}
        return {"info": json.dumps(info), "security-credentials": credentials}

    def credentials(self, role: str) -> dict[str, str]:
        """Return credentials of a role, as an instance with it gets them."""
        key = "ASIA" + role.upper().replace("-", "").replace("_", "")[:16].ljust(16, "0")
        self.issued_keys[key] = role
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
    node: Any = tree
    for name in filter(None, path.split("/")):
        if not isinstance(node, dict) or name not in node:
            return None
        node = node[name]
    if isinstance(node, dict):
        return "\n".join(
            f"{name}/" if isinstance(value, dict) else name for name, value in node.items()
        )
    return str(node)
