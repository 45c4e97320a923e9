"""From a cluster file to a `ClusterSpec`: the layers, in the order in which they apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.problems import KeyPath, Problem, SpecError, SpecWarning
from shoal.spec.source import YamlText, read

if TYPE_CHECKING:
    from shoal.spec.draft import Draft, Origin
    from shoal.spec.nodes_file import NodesFile
    from shoal.spec.yaml_document import Document

# PyYAML and pydantic are imported inside of functions: commands that read no file start quicker.


@dataclass(frozen=True)
class Overrides:
    """What the command line says over the file, as `ray up` has it."""

    cluster_name: str | None = None
    min_workers: int | None = None
    max_workers: int | None = None


@dataclass(frozen=True)
class LoadedSpec:
    """A spec and how it came to be. `origins` holds, by the path of a value in the spec, where
    it came from. `refusals` are settings that are understood but that no provider of ours can
    serve: the file can be looked at, not launched."""

    spec: ClusterSpec
    source: str
    warnings: tuple[SpecWarning, ...]
    origins: Mapping[KeyPath, Origin]
    refusals: tuple[Problem, ...] = ()

    def origin_of(self, *path: str | int) -> Origin | None:
        """Where the value at this path of the spec came from; without an origin of its own,
        that of what holds it."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path)

    def launchable(self) -> ClusterSpec:
        """The spec, for one who means to launch it. Raises `SpecError` when no one can."""
        if self.refusals:
            raise SpecError(self.refusals)
        return self.spec


def load(
    source: str | Path | YamlText | NodesFile, overrides: Overrides | None = None
) -> LoadedSpec:
    """Read a cluster file from a path, an http(s) address, or text that was already read; or a
    list of machines that stands for one.

    Raises `SpecError` with every mistake in it.
    """
    from shoal.spec import nodes_file, yaml_document

    if isinstance(source, nodes_file.NodesFile):
        parsed = nodes_file.parse(source)
    else:
        parsed = yaml_document.parse(read(source))
    return _load(parsed, overrides or Overrides())


def default_embedded(overrides: Overrides | None = None) -> LoadedSpec:
    """The cluster of a person who gave no file: a head and two workers on this machine."""
    from shoal.spec.yaml_document import Document

    data = {"cluster_name": "local", "provider": {"type": "embedded"}}
    loaded = _load(Document("default", data, {}, ()), overrides or Overrides())
    return replace(loaded, source="")


def _load(document: Document, overrides: Overrides) -> LoadedSpec:
    from shoal.spec import (
        defaults,
        docker_section,
        embedded_section,
        legacy_schema,
        local_section,
        validation,
        volumes_section,
    )
    from shoal.spec.draft import Draft
    from shoal.spec.resolve import resolve
    from shoal.spec.schema import check_shape

    data, placeholders = _tidied(document)
    shape = check_shape(document, data)
    draft = Draft(document.name, shape.data, document.lines)
    for path in placeholders:
        kept = draft.has(*path)
        why = "put your own value there" if kept else "until it is replaced it counts as not given"
        draft.warn(f"{path[-1]} is a template's placeholder", why, *path)
    _apply_overrides(draft, overrides)
    _choose_provider(draft)
    kind = validation.check_provider(draft)
    basis = kind if kind in validation.SUPPORTED else "external"

    if basis == "local":
        local_section.prepare(draft)
    if basis == "embedded":
        embedded_section.prepare(draft)
    defaults.name_head(draft, basis)
    legacy_schema.modernise(draft, basis)
    defaults.lay_under(draft, basis)
    legacy_schema.spread_min_workers(draft)
    if basis == "embedded":
        embedded_section.give_cpus(draft)

    validation.check(draft, kind)
    docker_section.check(draft)
    volumes_section.check(draft, kind)
    own = [found for found in draft.problems if not _follows(found.path, shape.left_out)]
    if problems := [*document.problems, *shape.problems, *own]:
        raise SpecError(problems)
    spec, origins = resolve(draft)
    return LoadedSpec(spec, document.name, tuple(draft.warnings), origins, _refusals(draft))


def _tidied(document: Document) -> tuple[dict[str, Any], list[tuple[str, ...]]]:
    """The file's data without what says nothing: empty values, and a template's placeholders."""
    from shoal.spec.local_section import without_placeholders

    data = document.data
    if data is None:
        raise SpecError([Problem(document.name, "is empty")])
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "plain text"
        raise SpecError([Problem(document.name, f"must be a mapping of settings, but is {kind}")])
    data = _without_nulls(data)
    for key in ("available_node_types", "head_node_type"):
        if data.get(key) == {}:
            del data[key]
    provider = data.get("provider")
    is_local = isinstance(provider, dict) and provider.get("type") == "local"
    return data, without_placeholders(data) if is_local else []


def _without_nulls(data: dict[str, Any]) -> dict[str, Any]:
    """A key whose value was left empty counts as not given, wherever we know the keys. What a
    provider reads (its section, and `node_config`) stays as it is."""
    kept = {key: value for key, value in data.items() if value is not None}
    for key in ("auth", "docker", "shoal"):
        if isinstance(kept.get(key), dict):
            kept[key] = {k: v for k, v in kept[key].items() if v is not None}
    for key in ("head_node", "worker_nodes"):
        machine = kept.get(key)
        if isinstance(machine, dict) and machine.get("resources", 0) is None:
            kept[key] = {k: v for k, v in machine.items() if k != "resources"}
    if isinstance(kept.get("available_node_types"), dict):
        kept["available_node_types"] = {
            name: {k: v for k, v in (kind or {}).items() if v is not None}
            if kind is None or isinstance(kind, dict)
            else kind
            for name, kind in kept["available_node_types"].items()
        }
    return kept


def _apply_overrides(draft: Draft, overrides: Overrides) -> None:
    from shoal.spec.draft import COMMAND_LINE

    given = {
        "cluster_name": overrides.cluster_name,
        "min_workers": overrides.min_workers,
        "max_workers": overrides.max_workers,
    }
    for key, value in given.items():
        if value is None:
            continue
        draft.put((key,), value, COMMAND_LINE)
        if isinstance(value, int) and value < 0:
            draft.refuse(f"must be 0 or more, not {value}", key)


def _choose_provider(draft: Draft) -> None:
    from shoal.spec.draft import DEFAULT

    if not draft.has("provider"):
        draft.warn("no provider is given", "the nodes run on this machine (type embedded)")
        draft.put(("provider",), {"type": "embedded"}, DEFAULT)


def _follows(path: KeyPath, left_out: set[KeyPath]) -> bool:
    """Whether a mistake may be there only because something else was wrong and left out."""
    if path in (("head_node_type",), ("worker_default_node_type",)):
        left_out = left_out | ({path} if ("available_node_types",) in left_out else set())
    return any(path[: len(other)] == other or other[: len(path)] == path for other in left_out)


def _refusals(draft: Draft) -> tuple[Problem, ...]:
    path = ("provider", "coordinator_address")
    if not draft.has(*path):
        return ()
    message = (
        "a coordinator that hands out machines is not supported; name the machines in head_ip and "
        "worker_ips instead"
    )
    return (Problem(draft.name, message, path, draft.origin(*path).line),)
