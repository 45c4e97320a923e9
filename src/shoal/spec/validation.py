"""What values of a cluster file must mean together. Runs on a draft that has its defaults."""

from __future__ import annotations

import re

from shoal.spec.draft import Draft
from shoal.spec.problems import did_you_mean, likely

SUPPORTED = ("aws", "gcp", "local", "external", "embedded")

_ELSEWHERE = {
    "azure": "use aws, gcp, or a node provider class of your own with type external",
    "aliyun": "use aws, gcp, or a node provider class of your own with type external",
    "vsphere": "list the machines' addresses with type local instead",
    "kubernetes": "on Kubernetes, KubeRay's operator does this",
    "kuberay": "on Kubernetes, KubeRay's operator does this",
    "staroid": "the service is gone; use aws, gcp or local",
    "spark": "Ray on Spark starts from Spark itself",
    "fake_multinode": "use embedded, which runs real nodes on this machine",
    "fake_multinode_docker": "use embedded, which runs real nodes on this machine",
    "readonly": "it is for clusters that were started by hand",
}

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_NAME_RULE = (
    "must be up to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"
)
_GCP_NAME = re.compile(r"[a-z0-9_-]+")


def check_provider(draft: Draft) -> str:
    """The provider's type; `unknown` for one that cannot be used, so that the rest of the file
    can be checked all the same."""
    kind = str(draft.get("provider", "type", default=""))
    if kind in SUPPORTED:
        return kind
    choice = ", ".join(SUPPORTED)
    if not kind:
        draft.refuse(f"is missing; it must be one of {choice}", "provider", "type")
    elif kind in _ELSEWHERE:
        draft.refuse(f"{kind} is not supported; {_ELSEWHERE[kind]}", "provider", "type")
    else:
        guess = likely(kind, SUPPORTED)
        hint = f"did you mean {guess!r}?" if guess else f"it must be one of {choice}"
        draft.refuse(f"{kind!r} is not known; {hint}", "provider", "type")
    return "unknown"


def check(draft: Draft, provider: str) -> None:
    """Note every contradiction in the draft."""
    _check_name(draft, provider)
    _check_head(draft)
    _check_counts(draft)
    _check_auth(draft)
    _check_resources(draft)
    if provider == "external":
        _check_module(draft)


def _check_resources(draft: Draft) -> None:
    """Ray hands out parts of a resource, but a node has only whole ones."""
    for name, node_type in draft.get("available_node_types").items():
        for resource, amount in (node_type.get("resources") or {}).items():
            if amount != int(amount):
                draft.warn(
                    f"a node of type {name} will have {int(amount)} {resource}, not {amount:g}",
                    "Ray gives a node whole resources only",
                    "available_node_types", name, "resources", resource,
                )  # fmt: skip


def _check_name(draft: Draft, provider: str) -> None:
    name = draft.get("cluster_name")
    if not _NAME.fullmatch(name):
        better = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:63].strip("-._")
        hint = f"; {better!r} would do" if better else ""
        draft.refuse(f"{_NAME_RULE}{hint}", "cluster_name")
    elif provider == "gcp" and not _GCP_NAME.fullmatch(name):
        better = name.lower().replace(".", "-")
        draft.refuse(
            f"must be lower-case letters, digits, '-' or '_' on GCP, where it is a label; "
            f"{better!r} would do",
            "cluster_name",
        )


def _check_head(draft: Draft) -> None:
    types = list(draft.get("available_node_types"))
    head = draft.get("head_node_type")
    if head is None:
        choice = ", ".join(types)
        draft.refuse(
            f"is missing; it must be one of {choice}",
            "head_node_type",
            near=("available_node_types",),
        )
    elif head not in types:
        message = f"{head!r} is not among available_node_types{did_you_mean(head, types)}"
        draft.refuse(message, "head_node_type")


def _check_counts(draft: Draft) -> None:
    limit = draft.get("max_workers")
    head = draft.get("head_node_type")
    total = 0
    for name in draft.get("available_node_types"):
        path = ("available_node_types", name)
        least = draft.get(*path, "min_workers", default=0)
        most = draft.get(*path, "max_workers")
        if most is None and name == head and least:
            draft.warn(
                f"min_workers of {name} is ignored",
                "no workers are made of the head's type unless it has a max_workers",
                *path,
                "min_workers",
            )
            draft.put((*path, "min_workers"), 0, draft.origin(*path, "min_workers"))
            continue
        if most is not None and least > most:
            draft.refuse(f"must be at most max_workers, {most}, not {least}", *path, "min_workers")
        total += least
    if total > limit:
        default = " by default" if draft.origin("max_workers").kind == "default" else ""
        draft.refuse(
            f"is {limit}{default}, but the node types' min_workers add up to {total}",
            "max_workers",
            near=() if not default else ("available_node_types",),
        )
    initial = draft.get("initial_workers", default=0)
    if initial > limit:
        draft.warn(
            f"only {limit} workers are made at first", f"max_workers is {limit}", "initial_workers"
        )


def _check_auth(draft: Draft) -> None:
    if draft.get("auth", "ssh_proxy_use_node_id") and not draft.get("auth", "ssh_proxy_command"):
        draft.refuse("needs ssh_proxy_command beside it", "auth", "ssh_proxy_use_node_id")


def _check_module(draft: Draft) -> None:
    module = draft.get("provider", "module", default="")
    parts = module.split(".")
    if not module:
        draft.refuse("is missing: the class to use, as package.Class", "provider", "module")
    elif len(parts) < 2 or not all(part.isidentifier() for part in parts):
        draft.refuse(f"must be a class, as package.Class, not {module!r}", "provider", "module")
