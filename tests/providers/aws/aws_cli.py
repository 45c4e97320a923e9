"""The part of the AWS command line that proposed fixes use."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Options of the real one that are no parameters of the API.
_SHORTHAND = {
    "--protocol": ("IpProtocol",),
    "--port": ("FromPort", "ToPort"),
    "--cidr": ("CidrIp",),
}


def run(command: str, client: Callable[[str], Any], directory: Path) -> None:
    """Run `aws SERVICE OPERATION --option value ...`."""
    _, service, operation, *rest = shlex.split(command)
    api = client(service)
    method = operation.replace("-", "_")
    shape = api.meta.service_model.operation_model(api.meta.method_to_api_mapping[method])
    members = {name.lower(): (name, member) for name, member in shape.input_shape.members.items()}
    arguments: dict[str, Any] = {}
    while rest:
        option = rest.pop(0)
        value = rest.pop(0) if rest and not rest[0].startswith("--") else None
        for key in _SHORTHAND.get(option, (option[2:].replace("-", ""),)):
            name, shape_of_value = members[key.lower()]
            arguments[name] = _parse(shape_of_value, value, directory)
    getattr(api, method)(**arguments)


def _parse(shape: Any, value: str | None, directory: Path) -> Any:
    if value is None:  # a flag
        return {"Value": True} if shape.type_name == "structure" else True
    if value.startswith("file://"):
        return (directory / value.removeprefix("file://")).read_text()
    return {"integer": int, "double": float}.get(shape.type_name, str)(value)
