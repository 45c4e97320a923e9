"""A `ClusterSpec` as JSON and back: the form in which it travels to the head and is remembered."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from shoal.spec.cluster_spec import ClusterSpec

_T = TypeVar("_T")


def to_json(spec: ClusterSpec) -> dict[str, Any]:
    """The spec as data that `json.dumps` takes."""
    plain = _plain(spec)
    assert isinstance(plain, dict)
    return plain


def from_json(data: Any) -> ClusterSpec:
    """The spec that `to_json` was given. Raises ValueError for what is not one."""
    try:
        return _record(ClusterSpec, data)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a cluster spec: {error}") from None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value


def _record(kind: type[_T], data: Any) -> _T:
    # Another version of Shoal may have written more than this one knows.
    hints = get_type_hints(kind)
    known = {name: value for name, value in data.items() if name in hints}
    return kind(**{name: _typed(hints[name], value) for name, value in known.items()})


def _typed(hint: Any, value: Any) -> Any:
    """The value in the form that the model's annotation asks for. What has no form of its own in
    Python (text, numbers, a provider's settings) stays as it is."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _record(hint, value)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (inner,) = (arg for arg in get_args(hint) if arg is not type(None))
        return _typed(inner, value)
    if origin is tuple:
        return tuple(value)
    if origin is Mapping:
        return {key: _typed(get_args(hint)[1], inner) for key, inner in value.items()}
    return value
