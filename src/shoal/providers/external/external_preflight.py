"""What can be said about a node provider class before anything is created: whether it loads, and
what Shoal cannot promise with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shoal.core.errors import ConfigError
from shoal.providers.external import ray_config
from shoal.providers.external.class_loading import class_path, load_class
from shoal.providers.external.node_provider_driver import NodeView
from shoal.providers.model import Finding
from shoal.providers.provider_code import code_of
from shoal.spec.cluster_spec import ClusterSpec

# Classes whose constructor ends the nodes that an earlier instance of it has launched.
_ENDS_EARLIER_NODES = ("ray_vast.provider.VastNodeProvider",)


def check_class(spec: ClusterSpec) -> list[Finding]:
    """Problems with the class and the settings that it needs."""
    findings: list[Finding] = []
    try:
        load_class(spec)
        code_of(class_path(spec).rpartition(".")[0], spec.shoal.provider_path)
    except ConfigError as error:
        at = ("provider",)
        findings.append(Finding("error", error.what, error.why, error.fix, at=at))
    settings = spec.provider.settings
    starts_ray = bool(settings.get("disable_node_updaters"))
    if not spec.shoal.controller and spec.scaling.max_workers:
        findings.append(
            Finding(
                "error",
                "the cluster would have no workers",
                why="only the controller on the head launches workers with an external provider, "
                "and shoal.controller is false",
                fix="remove shoal: {controller: false}, or set max_workers: 0",
            )
        )
    if starts_ray and spec.shoal.auth == "token":
        findings.append(
            Finding(
                "warning",
                "the workers join only if the class gives them the cluster's token",
                why="provider.disable_node_updaters is set, so they start Ray themselves, and "
                "Shoal does not copy the token to them",
                fix="have the class give them ~/.shoal/auth_token of the head\n"
                "or, if they start Ray without a token, set shoal: {auth: none}, and let only the "
                "cluster's nodes reach the head",
            )
        )
    if class_path(spec) in _ENDS_EARLIER_NODES:
        findings.append(
            Finding(
                "warning",
                "a restart of the controller replaces all workers",
                why="the class is constructed again, and its constructor ends all workers that it "
                "has launched before, with the work that runs on them",
                fix="let Ray run lost work again (max_retries, max_restarts, checkpoints)",
            )
        )
    key = spec.auth.ssh_private_key
    if key is not None and not Path(key).expanduser().exists():
        what = f"auth.ssh_private_key {key} does not exist"
        findings.append(Finding("error", what, fix="correct the path"))
    findings += [
        Finding(
            "error",
            f"node type {name} has no resources",
            why="neither the file nor the class says what a node of it has, so nothing can be "
            "planned for it",
            fix=f"add available_node_types: {{{name}: {{resources: {{CPU: 4}}}}}}",
            at=("available_node_types", name),
        )
        for name, node_type in spec.node_types.items()
        if node_type.max_workers and not node_type.resources and not _fills_resources(spec)
    ]
    return [replace(finding, check="external-class") for finding in findings]


def check_head_tags(heads: Sequence[NodeView]) -> list[Finding]:
    """What cannot be promised because the class loses tags, as the head shows."""
    lost = [view for view in heads if ray_config.TOKEN not in view.tags]
    if not lost:
        return []
    return [
        Finding(
            "warning",
            "the node provider does not keep tags",
            why="a launch that is interrupted is recognised by its tag; without it, Shoal takes "
            "new nodes of the right type for its result, and may launch one too many",
            fix="after a crash of the head, compare shoal status with the cloud's console",
            check="external-tags",
        )
    ]


def _fills_resources(spec: ClusterSpec) -> bool:
    """Whether the class itself knows the resources of node types."""
    try:
        loaded = load_class(spec)
    except ConfigError:
        return True  # reported already
    method = "fillout_available_node_types_resources"
    defining = next((c for c in loaded.__mro__ if method in vars(c)), object)
    return defining.__module__ not in ("builtins", "ray.autoscaler.node_provider")
