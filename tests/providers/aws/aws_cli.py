"""The AWS command line, as far as the fixes that are proposed to people use it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Options that the real one has beside those of the API.
_SHORT = {
    "--protocol": ("IpProtocol",),
    "--port": ("FromPort", "ToPort"),
    "--cidr": ("CidrIp",),
}


def run(command: str, client: Callable[[str], Any], directory: Path) -> None:
    """Do what `aws SERVICE OPERATION --option value ...` does."""
    _, service, operation, *words = shlex.split(command)
    caller = client(service)
    method = operation.replace("-", "_")
    shape = caller.meta.service_model.operation_model(caller.meta.method_to_api_mapping[method])
    members = {name.lower(): (name, kind) for name, kind in shape.input_shape.members.items()}
    given: dict[str, Any] = {}
    while words:
        option = words.pop(0)
        value = words.pop(0) if words and not words[0].startswith("--") else None
        for short in _SHORT.get(option, (option[2:].replace("-", ""),)):
            name, kind = members[short.lower()]
            given[name] = _typed(kind, value, directory)
    getattr(caller, method)(**given)


def _typed(kind: Any, value: str | None, directory: Path) -> Any:
    if value is None:  # a flag
        return {"Value": True} if kind.type_name == "structure" else True
    if value.startswith("file://"):
        return (directory / value.removeprefix("file://")).read_text()
    return {"integer": int, "double": float}.get(kind.type_name, str)(value)
