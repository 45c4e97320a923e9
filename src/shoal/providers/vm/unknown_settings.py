"""Settings of the provider section that a cloud does not have. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from shoal.providers.model import Finding
from shoal.spec.cluster_spec import ClusterSpec


def check_provider_settings(
    spec: ClusterSpec, cloud: str, known: Sequence[str], other_ways: Mapping[str, str]
) -> list[Finding]:
    """A warning for each setting that is not `known`. `other_ways` say what to do instead."""
    findings = []
    for name in spec.provider.settings:
        if name in known:
            continue
        similar = difflib.get_close_matches(name, known, n=1)
        fix = other_ways.get(name) or (f"rename it: {similar[0]}" if similar else "")
        findings.append(
            Finding(
                "warning",
                f"provider.{name} is ignored",
                why=f"the {cloud} provider has no such setting",
                fix=fix or f"remove {name}",
                at=("provider", "settings", name),
            )
        )
    return findings
