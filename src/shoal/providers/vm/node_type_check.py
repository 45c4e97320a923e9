"""`NodeTypeCheck`: a node type that preflight checks, with the instance types that it may use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

from shoal.providers.model import Finding


@dataclass(frozen=True)
class NodeTypeCheck:
    """A node type to check: its configuration, and its settings in the file. `container_images` are
    its images with their places in the file, `fallback` its alternative instance types. A cloud's
    own class says which key of the configuration is the instance type."""

    TYPE_KEY: ClassVar[str]

    name: str
    config: Mapping[str, Any]
    min_workers: int
    is_head: bool
    container_images: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fallback: tuple[str, ...] = ()
    on_demand_fallback: bool = False

    def at(self, *keys: str) -> tuple[str, ...]:
        return ("node_types", self.name, "node_config", *keys)

    @property
    def min_count(self) -> int:
        """How many instances `up` launches."""
        return self.min_workers + self.is_head


_Check = TypeVar("_Check", bound=NodeTypeCheck)


def candidates(node_type: _Check) -> list[_Check]:
    """The node type with its own instance type, and with each alternative."""
    configs = [{**node_type.config, node_type.TYPE_KEY: name} for name in node_type.fallback]
    return [node_type, *(replace(node_type, config=config) for config in configs)]


def check_candidates(node_type: _Check, check: Callable[[_Check], list[Finding]]) -> list[Finding]:
    """The findings of `check` for the preferred instance type and for its alternatives. They are
    errors only if every candidate has one."""
    preferred, *alternatives = [check(candidate) for candidate in candidates(node_type)]
    findings = list(preferred)
    if not all(_has_error(some) for some in (preferred, *alternatives)):
        findings = [replace(finding, severity="warning") for finding in preferred]
    reported = {finding.what for finding in preferred}
    for name, some in zip(node_type.fallback, alternatives, strict=True):
        findings += [
            Finding(
                "warning",
                finding.what,
                finding.why,
                fix=f"remove {name} from shoal.fallback",
                at=("shoal", "fallback", node_type.name),
            )
            for finding in some
            if finding.what not in reported
        ]
    return findings


def _has_error(findings: Sequence[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)
