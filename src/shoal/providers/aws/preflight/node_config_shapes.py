"""Checks each `node_config` against EC2's own description of RunInstances, so that a misspelt key
or a value of the wrong type is reported with its place before anything reads it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from shoal.core.errors import ConfigError
from shoal.providers.aws.aws_client import models
from shoal.providers.model import Finding
from shoal.spec.cluster_spec import ClusterSpec

# Keys that Ray added to those of RunInstances.
_RAY_KEYS = ("SubnetIds",)
_UNKNOWN = re.compile(r'Unknown parameter in (\S+): "(\w+)", must be one of: (.*)')
_PARAMETER = re.compile(r"parameter ([\w.\[\]]+)")
_WHAT = "node_config cannot be passed to EC2"
_CHECK = "node-config"


def check_node_configs(spec: ClusterSpec) -> list[Finding]:
    """The problems of every node type."""
    return [
        finding
        for name, node_type in spec.node_types.items()
        for finding in _check(name, node_type.node_config)
    ]


def refuse_invalid(name: str, config: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if a `node_config` cannot be passed to RunInstances."""
    for finding in _check(name, config):
        raise ConfigError(f"{name}: {finding.what}", why=finding.why, fix=finding.fix)


def _check(name: str, config: Mapping[str, Any]) -> list[Finding]:
    at = ("node_types", name, "node_config")
    profile = config.get("IamInstanceProfile")
    if isinstance(profile, str) and profile:
        key = "Arn" if profile.startswith("arn:") else "Name"
        fix = f"IamInstanceProfile: {{{key}: {profile}}}"
        what, why = "IamInstanceProfile is a string", "EC2 expects a mapping with Name or Arn"
        others = {key: value for key, value in config.items() if key != "IamInstanceProfile"}
        found = Finding("error", what, why, fix, (*at, "IamInstanceProfile"), _CHECK)
        return [found, *_check(name, others)]
    from botocore.validate import ParamValidator

    request = {k: v for k, v in config.items() if k not in _RAY_KEYS and v is not None}
    template = request.get("LaunchTemplate")
    if isinstance(template, dict) and isinstance(template.get("Version"), int):
        # A version is a number in Ray's examples and a text for EC2.
        request["LaunchTemplate"] = {**template, "Version": str(template["Version"])}
    report = ParamValidator().validate({**request, "MinCount": 1, "MaxCount": 1}, _shape())
    lines = filter(None, report.generate_report().splitlines())
    findings = [_finding(line, at, config) for line in lines]
    subnets = config.get("SubnetIds")
    if subnets is not None and not _are_texts(subnets):
        what, why = "SubnetIds is not a list of subnet ids", f"it is {subnets!r}"
        place, fix = (*at, "SubnetIds"), "SubnetIds: [subnet-...]"
        findings.append(Finding("error", what, why, fix, place, _CHECK))
    return findings


def _finding(line: str, at: tuple[str, ...], config: Mapping[str, Any]) -> Finding:
    """The finding for one line of botocore's report."""
    fix = "correct it: node_config has the parameters of EC2's RunInstances"
    if unknown := _UNKNOWN.match(line):
        parent, name, known = unknown.groups()
        path, why = f"{parent}.{name}".removeprefix("input."), f"EC2 has no parameter {name}"
        if similar := difflib.get_close_matches(name, known.split(", "), n=1):
            fix = f"replace {name} by {similar[0]}"
    else:
        parameter = _PARAMETER.search(line)
        path, why = parameter[1] if parameter else "", line.rstrip(".")
    key = re.split(r"[.\[]", path)[0]
    place = (*at, key) if key in config else at
    return Finding("error", f"{_WHAT}: {path}" if path else _WHAT, why, fix, place, _CHECK)


def _are_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)


@cache
def _shape() -> Any:
    from botocore.model import ServiceModel

    description = models().load_service_model("ec2", "service-2")
    return ServiceModel(description, "ec2").operation_model("RunInstances").input_shape
