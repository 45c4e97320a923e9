"""AWS calls as data: what was asked, and how AWS words a refusal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

_SCOPE = re.compile(r"Credential=([^/]+)/\d+/([^/]+)/([^/]+)/")


@dataclass(frozen=True)
class Call:
    """One request to the cloud's API, as it came in."""

    number: int
    """1 for the first call that this cloud ever saw."""
    service: str
    action: str
    region: str
    access_key: str
    source: str
    params: Mapping[str, str] = field(repr=False)

    @property
    def token(self) -> str | None:
        return self.params.get("ClientToken")

    @property
    def market(self) -> str:
        return self.params.get("InstanceMarketOptions.MarketType", "on-demand")


@dataclass(frozen=True)
class ApiError:
    """A refusal in the words of the API."""

    code: str
    message: str
    status: int = 400

    def body(self, service: str) -> str:
        """Render it as EC2 does, or as the other query services do."""
        error = f"<Code>{escape(self.code)}</Code><Message>{escape(self.message)}</Message>"
        if service == "ec2":
            return (
                '<?xml version="1.0" encoding="UTF-8"?>\n'
                f"<Response><Errors><Error>{error}</Error></Errors>"
                "<RequestID>00000000-0000-0000-0000-000000000000</RequestID></Response>"
            )
        return (
            f"<ErrorResponse><Error><Type>Sender</Type>{error}</Error>"
            "<RequestId>00000000-0000-0000-0000-000000000000</RequestId></ErrorResponse>"
        )


def read_call(number: int, headers: Mapping[str, str], query: str, body: str, source: str) -> Call:
    """Understand a signed request: query protocol (EC2, IAM, STS) or JSON (the newer services)."""
    scope = _SCOPE.search(headers.get("Authorization", ""))
    access_key, region, service = scope.groups() if scope else ("", "", "")
    target = headers.get("X-Amz-Target")
    params: dict[str, str] = {}
    if not target:
        params = dict(parse_qsl(query, keep_blank_values=True))
        params.update(parse_qsl(body, keep_blank_values=True))
    action = target.rpartition(".")[2] if target else params.get("Action", "")
    return Call(number, service, action, region, access_key, source, params)


def capacity_error(kind: str, zone: str | None) -> ApiError:
    where = f" in the Availability Zone you requested ({zone})" if zone else ""
    message = f"We currently do not have sufficient {kind} capacity{where}."
    return ApiError("InsufficientInstanceCapacity", message, 500)


THROTTLED = ApiError("RequestLimitExceeded", "Request limit exceeded.", 503)
INTERNAL = ApiError("InternalError", "An internal error has occurred", 500)


def credential_error(service: str) -> ApiError:
    if service == "ec2":
        message = "AWS was not able to validate the provided access credentials"
        return ApiError("AuthFailure", message, 401)
    message = "The security token included in the request is invalid."
    return ApiError("InvalidClientTokenId", message, 403)
