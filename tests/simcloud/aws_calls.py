"""AWS's wire format: parses requests and renders errors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from tests.simcloud.calls import ApiError, Call, Launch
from tests.simcloud.faults import Trouble

_SCOPE = re.compile(r"Credential=([^/]+)/\d+/([^/]+)/([^/]+)/")
_JSON_SERVICES = ("ecr", "pricing", "servicequotas", "ssm")
_REQUEST = "00000000-0000-0000-0000-000000000000"

MISMATCH = ApiError(
    "IdempotentParameterMismatch", "Arguments on this idempotent request are inconsistent"
)


def read_call(number: int, headers: Mapping[str, str], query: str, body: str, source: str) -> Call:
    """Parse a signed request: query protocol (EC2, IAM, STS) or JSON (the newer services)."""
    scope = _SCOPE.search(headers.get("Authorization", ""))
    access_key, region, service = scope.groups() if scope else ("", "", "")
    target = headers.get("X-Amz-Target")
    params: dict[str, str] = {}
    if not target:
        params = dict(parse_qsl(query, keep_blank_values=True))
        params.update(parse_qsl(body, keep_blank_values=True))
    action = target.rpartition(".")[2] if target else params.get("Action", "")
    token = params.get("ClientToken")
    return Call(number, service, action, region, access_key, source, params, token)


def read_launch(call: Call, zone_of_subnet: Mapping[str, str]) -> Launch:
    """Parse a RunInstances call."""
    params = call.params
    subnet = params.get("SubnetId") or params.get("NetworkInterface.1.SubnetId") or ""
    zone = params.get("Placement.AvailabilityZone") or f"{call.region}a"
    return Launch(
        type=params.get("InstanceType", "m1.small"),
        zone=zone_of_subnet.get(subnet, zone),
        market=params.get("InstanceMarketOptions.MarketType", "on-demand"),
        at_least=int(params.get("MinCount", 1)),
        at_most=int(params.get("MaxCount", 1)),
    )


def error_for(trouble: Trouble, launch: Launch | None) -> ApiError:
    """Return the error of AWS for an injected fault."""
    if trouble is Trouble.THROTTLED:
        return ApiError("RequestLimitExceeded", "Request limit exceeded.", 503)
    if trouble is Trouble.NO_CAPACITY and launch:
        message = (
            f"We currently do not have sufficient {launch.type} capacity in the Availability "
            f"Zone you requested ({launch.zone})."
        )
        return ApiError("InsufficientInstanceCapacity", message, 500)
    return ApiError("InternalError", "An internal error has occurred", 500)


def credential_error(service: str) -> ApiError:
    if service == "ec2":
        message = "AWS was not able to validate the provided access credentials"
        return ApiError("AuthFailure", message, 401)
    message = "The security token included in the request is invalid."
    return ApiError("InvalidClientTokenId", message, 403)


def render(error: ApiError, service: str) -> tuple[str, str]:
    """Return the content type and the body of an error: in EC2's format, in that of the other query
    services, or in JSON."""
    if service in _JSON_SERVICES:
        return "application/x-amz-json-1.1", json.dumps(
            {"__type": error.code, "message": error.message}
        )
    return "text/xml", _xml(error, service)


def _xml(error: ApiError, service: str) -> str:
    text = f"<Code>{escape(error.code)}</Code><Message>{escape(error.message)}</Message>"
    if service == "ec2":
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Response><Errors><Error>{text}</Error></Errors>"
            f"<RequestID>{_REQUEST}</RequestID></Response>"
        )
    return (
        f"<ErrorResponse><Error><Type>Sender</Type>{text}</Error>"
        f"<RequestId>{_REQUEST}</RequestId></ErrorResponse>"
    )
