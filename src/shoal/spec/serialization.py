"""`ClusterSpec` to JSON and back, for sending it to the head and for storing it."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from shoal.spec.cluster_spec import ClusterSpec

_T = TypeVar("_T")


def to_json(spec: ClusterSpec) -> dict[str, Any]:
    """The spec as data for `json.dumps`."""
    data = _plain(spec)
    assert isinstance(data, dict)
    return data


def from_json(data: Any) -> ClusterSpec:
    """The inverse of `to_json`. Raises ValueError if the data is not a spec."""
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


def _record(cls: type[_T], data: Any) -> _T:
    # Another version of Shoal may have written fields that this one does not know.
    hints = get_type_hints(cls)
    known = {name: value for name, value in data.items() if name in hints}
    return cls(**{name: _typed(hints[name], value) for name, value in known.items()})


def _typed(hint: Any, value: Any) -> Any:
    """The value converted to the annotated type. Strings, numbers and a provider's settings are
    unchanged."""
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
