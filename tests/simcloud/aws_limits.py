"""Calls that AWS refuses by their parameters alone, and moto does not."""

from __future__ import annotations

import base64

from tests.simcloud.calls import ApiError, Call

_USER_DATA_BYTES = 16384
_MAX_SKEW_S = 300
# Without white space.
_POLICY_CHARACTERS = {"PutUserPolicy": 2048, "CreatePolicy": 6144, "PutRolePolicy": 10240}


def refuse(call: Call) -> ApiError | None:
    """The error of AWS for a call, or None."""
    data = call.params.get("UserData", "")
    if call.action == "RunInstances" and len(base64.b64decode(data)) > _USER_DATA_BYTES:
        message = f"User data is limited to {_USER_DATA_BYTES} bytes"
        return ApiError("InvalidParameterValue", message)
    if call.action == "RunInstances" and {"SecurityGroup.1", "SubnetId"} <= set(call.params):
        message = "The parameter groupName cannot be used with the parameter subnet"
        return ApiError("InvalidParameterCombination", message)
    limit = _POLICY_CHARACTERS.get(call.action)
    if limit and len("".join(call.params.get("PolicyDocument", "").split())) > limit:
        message = f"Maximum policy size of {limit} bytes exceeded"
        return ApiError("LimitExceeded", message, 409)
    return None


def refuse_clock(call: Call, skew: float) -> ApiError | None:
    """The error for a caller whose clock differs by `skew` seconds from that of AWS."""
    if abs(skew) <= _MAX_SKEW_S:
        return None
    if call.service == "ec2":
        message = "AWS was not able to validate the provided access credentials"
        return ApiError("AuthFailure", message, 401)
    message = "Signature expired: it is now earlier than 5 min. before the current time"
    return ApiError("SignatureDoesNotMatch", message, 403)
