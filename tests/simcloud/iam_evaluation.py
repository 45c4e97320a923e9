"""Evaluates IAM policy documents as AWS does: everything is denied that no statement allows, and a
permissions boundary allows nothing by itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Values = Sequence[str]


@dataclass(frozen=True)
class Need:
    """One action on one resource that a call is authorized for. `context` has the condition keys
    that AWS knows about it; a key with several values is a set, as `aws:TagKeys`."""

    action: str
    resource: str = "*"
    context: Mapping[str, Values] = field(default_factory=dict)


def is_allowed(policies: Iterable[str], boundary: Sequence[str], need: Need) -> bool:
    """Whether a caller with these policies, limited by a permissions boundary if there is one, has
    what is needed."""
    return allows(policies, need) and (not boundary or allows(boundary, need))


def allows(documents: Iterable[str], need: Need) -> bool:
    """Whether one of these policy documents allows what is needed, and none denies it."""
    statements = [s for text in documents for s in _listed(json.loads(text)["Statement"])]
    effects = {str(s["Effect"]) for s in statements if _applies(s, need)}
    return effects == {"Allow"}


def _applies(statement: Mapping[str, Any], need: Need) -> bool:
    return (
        any(_matches(action, need.action, re.IGNORECASE) for action in _listed(statement["Action"]))
        and any(_matches(pattern, need.resource) for pattern in _listed(statement["Resource"]))
        and all(
            _holds(operator, key, _listed(expected), need.context)
            for operator, keys in statement.get("Condition", {}).items()
            for key, expected in keys.items()
        )
    )


def _holds(operator: str, key: str, expected: list[str], context: Mapping[str, Values]) -> bool:
    quantifier, _, test = operator.rpartition(":")
    actual = context.get(key, ())
    if test not in ("StringEquals", "StringLike", "Bool"):
        raise NotImplementedError(f"the condition {operator} of a policy")
    met = [
        any(_matches(e, a) if test == "StringLike" else e == a for e in expected) for a in actual
    ]
    if quantifier == "ForAllValues":
        return all(met)
    # A key that the request does not have meets no condition.
    return any(met)


def _matches(pattern: str, text: str, flags: int = 0) -> bool:
    escaped = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(escaped, text, flags) is not None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
