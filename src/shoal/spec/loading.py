"""Load a cluster file into a `ClusterSpec`: applies overrides, provider rules, legacy keys,
defaults and validation, in this order. Never contacts a provider."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.problems import KeyPath, Problem, SpecError, SpecWarning
from shoal.spec.yaml_source import YamlText, read

if TYPE_CHECKING:
    from shoal.spec.nodes_file import NodesFile
    from shoal.spec.spec_draft import Draft, Origin
    from shoal.spec.yaml_document import Document

# PyYAML and pydantic are imported inside functions: commands that read no file start faster.

_log = logging.getLogger(__name__)

# Finds the line of the cluster file for a path of the spec, as `file:line`; empty if unknown.
SourceOf = Callable[[tuple[str, ...]], str]


def unknown_source(path: tuple[str, ...]) -> str:
    """The `SourceOf` of a spec without a file."""
    return ""


@dataclass(frozen=True)
class Overrides:
    """Command-line options that override the file, as in `ray up`. `autostop` is in seconds."""

    cluster_name: str | None = None
    min_workers: int | None = None
    max_workers: int | None = None
    autostop: float | None = None


@dataclass(frozen=True)
class LoadedSpec:
    """A spec with the origin of its values. `origins` maps the path of a value in the spec to where
    it came from. `unsupported` lists settings that are valid but that no provider here implements:
    such a file can be shown, but not launched. `draft` is the file with its defaults, in its own
    keys; None for the recorded spec of a cluster."""

    spec: ClusterSpec
    source: str
    warnings: tuple[SpecWarning, ...]
    origins: Mapping[KeyPath, Origin]
    unsupported: tuple[Problem, ...] = ()
    draft: Draft | None = None

    def origin_of(self, *path: str | int) -> Origin | None:
        """Where the value at this path of the spec came from; if it has no origin of its own, the
        origin of the nearest value that contains it."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path)

    def source_of(self, path: tuple[str, ...]) -> str:
        """The line of the file that sets the value at this path of the spec, as `file:line`;
        empty if the file does not set it."""
        origin = self.origin_of(*path) if path else None
        return str(origin) if origin is not None and origin.kind in ("file", "legacy") else ""

    def launchable(self) -> ClusterSpec:
        """The spec, to launch it. Raises `SpecError` if the file has unsupported settings."""
        if self.unsupported:
            raise SpecError(self.unsupported)
        return self.spec


def load(
    source: str | Path | YamlText | NodesFile,
    overrides: Overrides | None = None,
    *,
    install_ray: Callable[[], str] | None = None,
) -> LoadedSpec:
    """Load a cluster file from a path, an http(s) URL or text, or a list of hosts.

    `install_ray` returns the command that installs Ray; it becomes part of the default
    `setup_commands` of clouds. Without it, the defaults do not install Ray. Raises `SpecError` with
    all problems of the file.
    """
    from shoal.spec import nodes_file, yaml_document

    if isinstance(source, nodes_file.NodesFile):
        document = nodes_file.parse(source)
    else:
        document = yaml_document.parse(read(source))
    return _load(document, overrides or Overrides(), install_ray)


def default_embedded(overrides: Overrides | None = None) -> LoadedSpec:
    """The default cluster without a file: a head and two workers on this machine."""
    from shoal.spec.yaml_document import Document

    data = {"cluster_name": "local", "provider": {"type": "embedded"}}
    loaded = _load(Document("default", data, {}), overrides or Overrides())
    return replace(loaded, source="")


def _load(
    document: Document, overrides: Overrides, install_ray: Callable[[], str] | None = None
) -> LoadedSpec:
    from shoal.spec import (
        defaults,
        docker_section,
        embedded_section,
        legacy_schema,
        local_section,
        validation,
        volumes_section,
    )
    from shoal.spec.resolve import resolve
    from shoal.spec.schema import check_shape
    from shoal.spec.spec_draft import Draft

    data, placeholders = _clean(document)
    shape = check_shape(document, data)
    draft = Draft(document.name, shape.data, document.lines)
    draft.warnings += document.warnings
    for path in placeholders:
        hint = "replace it with your value" if draft.has(*path) else "ignored until replaced"
        draft.warn(f"{path[-1]} is a template placeholder", hint, *path)
    _apply_overrides(draft, overrides)
    _choose_provider(draft)
    provider = validation.check_provider(draft)
    # The rest of a file with any other provider is checked as if the provider were external.
    rules = defaults.rules_for(provider)

    if rules == "local":
        local_section.prepare(draft)
    if rules == "embedded":
        embedded_section.prepare(draft)
    defaults.infer_head_node_type(draft, rules)
    legacy_schema.migrate_node_types(draft, rules)
    legacy_schema.migrate_init_commands(draft)
    defaults.apply(draft, rules, install_ray)
    legacy_schema.migrate_min_workers(draft)
    if rules == "embedded":
        embedded_section.apply_default_cpus(draft)

    validation.check(draft, provider)
    docker_section.check(draft)
    volumes_section.check(draft, provider)
    independent = [p for p in draft.problems if not _may_follow_from(p.path, shape.dropped)]
    if len(independent) < len(draft.problems):
        hidden = len(draft.problems) - len(independent)
        _log.debug("%d problems are not reported: they may follow from others", hidden)
    if problems := [*document.problems, *shape.problems, *independent]:
        raise SpecError(problems)
    spec, origins = resolve(draft)
    if overrides.autostop is not None:
        spec = replace(spec, shoal=replace(spec.shoal, autostop=overrides.autostop))
    _log.info("loaded cluster %s, provider %s", spec.cluster_name, spec.provider.type)
    warnings = tuple(draft.warnings)
    return LoadedSpec(spec, document.name, warnings, origins, _unsupported(draft), draft)


def _clean(document: Document) -> tuple[dict[str, Any], list[tuple[str, ...]]]:
    """The file's data without empty values and template placeholders, and the paths of the
    placeholders."""
    from shoal.spec.local_section import remove_placeholders

    data = document.data
    if data is None:
        raise SpecError([Problem(document.name, "is empty")])
    if not isinstance(data, dict):
        actual = "a list" if isinstance(data, list) else "plain text"
        raise SpecError([Problem(document.name, f"must be a mapping of settings, not {actual}")])
    data = _without_nulls(data)
    for key in ("available_node_types", "head_node_type"):
        if data.get(key) == {}:
            del data[key]
    provider = data.get("provider")
    is_local = isinstance(provider, dict) and provider.get("type") == "local"
    return data, remove_placeholders(data) if is_local else []


def _without_nulls(data: dict[str, Any]) -> dict[str, Any]:
    """Drop keys with empty values where the keys are known. What a provider reads (its section,
    and `node_config`) stays unchanged."""
    kept = {key: value for key, value in data.items() if value is not None}
    for key in ("auth", "docker", "shoal"):
        if isinstance(kept.get(key), dict):
            kept[key] = {k: v for k, v in kept[key].items() if v is not None}
    for key in ("head_node", "worker_nodes"):
        section = kept.get(key)
        if isinstance(section, dict) and section.get("resources", 0) is None:
            kept[key] = {k: v for k, v in section.items() if k != "resources"}
    if isinstance(kept.get("available_node_types"), dict):
        kept["available_node_types"] = {
            name: {k: v for k, v in (node_type or {}).items() if v is not None}
            if node_type is None or isinstance(node_type, dict)
            else node_type
            for name, node_type in kept["available_node_types"].items()
        }
    return kept


def _apply_overrides(draft: Draft, overrides: Overrides) -> None:
    from shoal.spec.spec_draft import COMMAND_LINE

    values = {
        "cluster_name": overrides.cluster_name,
        "min_workers": overrides.min_workers,
        "max_workers": overrides.max_workers,
    }
    for key, value in values.items():
        if value is None:
            continue
        draft.put((key,), value, COMMAND_LINE)
        if isinstance(value, int) and value < 0:
            draft.error(f"must be 0 or more, not {value}", key)


def _choose_provider(draft: Draft) -> None:
    from shoal.spec.spec_draft import DEFAULT

    if not draft.has("provider"):
        draft.warn("no provider is set", "the nodes run on this machine (provider type embedded)")
        draft.put(("provider",), {"type": "embedded"}, DEFAULT)


def _may_follow_from(path: KeyPath, dropped: set[KeyPath]) -> bool:
    """Whether a problem at `path` may only be a consequence of invalid values that were dropped."""
    if path in (("head_node_type",), ("worker_default_node_type",)):
        dropped = dropped | ({path} if ("available_node_types",) in dropped else set())
    return any(path[: len(other)] == other or other[: len(path)] == path for other in dropped)


def _unsupported(draft: Draft) -> tuple[Problem, ...]:
    path = ("provider", "coordinator_address")
    if not draft.has(*path):
        return ()
    message = "coordinator servers are not supported; list the hosts in head_ip and worker_ips"
    return (Problem(draft.name, message, path, draft.origin(*path).line),)
