"""Encryption of volumes: the account's default key, and who may use it.

EC2 accepts a launch whose caller may not use the key of a volume, and ends its instances at once,
with a reason that does not name the key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from tests.simcloud.calls import Call

LAUNCH_ERROR = ("Client.InternalError", "Client error on launch")
_NEEDED = {
    "kms:CreateGrant",
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncrypt*",
}
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

    def may_use(self, policies: Iterable[str]) -> bool:
        """Whether a role with these policy documents may use the key for its volumes."""
        if not self.customer_key:
            return True
        statements = [s for text in policies for s in json.loads(text)["Statement"]]
        allowed = {
            action
            for statement in statements
            if self.customer_key in statement["Resource"]
            for action in statement["Action"]
        }
        return allowed >= _NEEDED
