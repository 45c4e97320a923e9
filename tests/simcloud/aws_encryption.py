"""Encryption of volumes: the account's default key, and who may use it.

EC2 accepts a launch whose caller may not use the key of a volume, and ends its instances at once,
with a reason that does not name the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.simcloud.calls import Call
from tests.simcloud.iam_evaluation import Need, is_allowed

LAUNCH_ERROR = ("Client.InternalError", "Client error on launch")
_NEEDED = (
    "kms:CreateGrant",
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)
_FOR_VOLUMES = {"kms:GrantIsForAWSResource": ["true"]}
_AWS_MANAGED = "alias/aws/ebs"


class Encryption:
    """The default key of the account. `customer_key` is the ARN of a key that the customer manages;
    empty: AWS manages it, and everyone may use it."""

    def __init__(self) -> None:
        self.customer_key = ""

    def respond(self, call: Call) -> str | None:
        """Return the content of the response to a call; None for calls that moto handles."""
        if call.action == "GetEbsDefaultKmsKeyId":
            return f"<kmsKeyId>{self.customer_key or _AWS_MANAGED}</kmsKeyId>"
        return None

    def may_use(self, role: Mapping[str, Any]) -> bool:
        """Whether a role may use the key for its volumes."""
        if not self.customer_key:
            return True
        needs = [Need(action, self.customer_key, _FOR_VOLUMES) for action in _NEEDED]
        return all(is_allowed(role["policies"], role["boundary"], need) for need in needs)
