"""Checks of a cluster file's values against each other. Runs on a draft that has its defaults."""

from __future__ import annotations

import re

from shoal.spec import provider_types
from shoal.spec.problems import closest, did_you_mean
from shoal.spec.provider_types import RAY_NODE_PROVIDERS, SUPPORTED
from shoal.spec.spec_draft import Draft

_UNSUPPORTED = {
    "kubernetes": "use the KubeRay operator on Kubernetes",
    "kuberay": "use the KubeRay operator on Kubernetes",
    "staroid": "the service no longer exists; use aws, gcp or local",
    "spark": "start Ray from Spark with ray.util.spark",
    "fake_multinode": "use embedded, which runs real nodes on this machine",
    "fake_multinode_docker": "use embedded, which runs real nodes on this machine",
    "readonly": "it is only for clusters that were started manually",
}

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_NAME_RULE = (
    "must be up to 63 letters, digits, '-', '_' or '.', and start and end with a letter or digit"
)
# Ray counts ten-thousandths of a resource in 64 bits.
_MAX_AMOUNT = 9e14


def check_provider(draft: Draft) -> str:
    """The provider's type; `unknown` if it is not supported, so that the rest of the file can still
    be checked."""
    provider = str(draft.get("provider", "type", default=""))
    if provider_types.is_known(provider):
        return provider
    known = (*SUPPORTED, *RAY_NODE_PROVIDERS, *provider_types.plugin_types())
    choices = ", ".join(known)
    if not provider:
        draft.error(f"is missing; it must be one of {choices}", "provider", "type")
    elif provider in _UNSUPPORTED:
        draft.error(f"{provider} is not supported; {_UNSUPPORTED[provider]}", "provider", "type")
    else:
        guess = closest(provider, known)
        hint = f"did you mean {guess!r}?" if guess else f"it must be one of {choices}"
        draft.error(f"{provider!r} is not a known provider; {hint}", "provider", "type")
    return "unknown"


def check(draft: Draft, provider: str) -> None:
    """Add a problem or a warning for every contradiction in the draft."""
    _check_name(draft)
    _check_head(draft)
    _check_counts(draft)
    _check_auth(draft)
    _check_type_names(draft)
    _check_resources(draft)
    _check_fallback(draft)
    if provider == "external":
        _check_module(draft)


def _check_type_names(draft: Draft) -> None:
    for name, node_type in draft.get("available_node_types").items():
        path = ("available_node_types", name)
        if not name.strip():
            draft.error("has a node type with an empty name", *path[:-1])
        for section in ("resources", "labels"):
            if any(not key.strip() for key in node_type.get(section) or {}):
                draft.error("has an empty name", *path, section)


def _check_resources(draft: Draft) -> None:
    """Tasks may use fractions of a resource, but a Ray node only has whole units."""
    for name, node_type in draft.get("available_node_types").items():
        for resource, amount in (node_type.get("resources") or {}).items():
            path = ("available_node_types", name, "resources", resource)
            if amount > _MAX_AMOUNT:
                draft.error(f"must be at most {_MAX_AMOUNT:g}, as in Ray, not {amount:g}", *path)
            elif amount != int(amount):
                draft.warn(
                    f"a node of type {name} will have {int(amount)} {resource}, not {amount:g}",
                    "Ray nodes only have whole units of a resource",
                    *path,
                )


def _check_fallback(draft: Draft) -> None:
    types = list(draft.get("available_node_types"))
    for name in draft.get("shoal", "fallback", default={}):
        if name not in types:
            message = f"{name!r} is not in available_node_types{did_you_mean(name, types)}"
            draft.error(message, "shoal", "fallback", name)


def _check_name(draft: Draft) -> None:
    name = draft.get("cluster_name")
    if not _NAME.fullmatch(name):
        valid_name = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:63].strip("-._")
        hint = f"; for example {valid_name!r}" if valid_name else ""
        draft.error(f"{_NAME_RULE}{hint}", "cluster_name")


def _check_head(draft: Draft) -> None:
    types = list(draft.get("available_node_types"))
    head = draft.get("head_node_type")
    if head is None:
        choices = ", ".join(types)
        draft.error(
            f"is missing; it must be one of {choices}",
            "head_node_type",
            near=("available_node_types",),
        )
    elif head not in types:
        message = f"{head!r} is not in available_node_types{did_you_mean(head, types)}"
        draft.error(message, "head_node_type")


def _check_counts(draft: Draft) -> None:
    limit = draft.get("max_workers")
    head = draft.get("head_node_type")
    total = 0
    for name in draft.get("available_node_types"):
        path = ("available_node_types", name)
        min_workers = draft.get(*path, "min_workers", default=0)
        max_workers = draft.get(*path, "max_workers")
        if max_workers is None and name == head and min_workers:
            draft.warn(
                f"min_workers of {name} is ignored",
                "the head's node type has no workers unless it sets max_workers",
                *path,
                "min_workers",
            )
            draft.put((*path, "min_workers"), 0, draft.origin(*path, "min_workers"))
            continue
        if max_workers is not None and min_workers > max_workers:
            message = f"must be at most max_workers, {max_workers}, not {min_workers}"
            draft.error(message, *path, "min_workers")
        total += min_workers
    if total > limit:
        default = " by default" if draft.origin("max_workers").kind == "default" else ""
        draft.error(
            f"is {limit}{default}, but min_workers of all node types add up to {total}",
            "max_workers",
            near=() if not default else ("available_node_types",),
        )
    initial = draft.get("initial_workers", default=0)
    if initial > limit:
        draft.warn(
            f"only {limit} workers are launched at first",
            f"max_workers is {limit}",
            "initial_workers",
        )


def _check_auth(draft: Draft) -> None:
    if draft.get("auth", "ssh_proxy_use_node_id") and not draft.get("auth", "ssh_proxy_command"):
        draft.error("requires ssh_proxy_command", "auth", "ssh_proxy_use_node_id")


def _check_module(draft: Draft) -> None:
    module = draft.get("provider", "module", default="")
    parts = module.split(".")
    if not module:
        draft.error(
            "is missing: set it to the provider class, as package.Class", "provider", "module"
        )
    elif len(parts) < 2 or not all(part.isidentifier() for part in parts):
        draft.error(
            f"must be a class name like package.Class, not {module!r}", "provider", "module"
        )
