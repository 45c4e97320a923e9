"""A follower of the fixes that preflight proposes, word for word."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal import spec
from shoal.core.events import PreflightFinding
from shoal.ops.context import Context
from shoal.ops.preflight import diagnose


@dataclass
class FixableFile:
    """A cluster file, and the user's home and environment. A variable that is None is unset."""

    directory: Path
    file: dict[str, Any] = field(default_factory=dict)
    home: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str | None] = field(default_factory=dict)

    @property
    def head(self) -> dict[str, Any]:
        name = self.file["head_node_type"]
        config: dict[str, Any] = self.file["available_node_types"][name]["node_config"]
        return config

    @property
    def worker(self) -> dict[str, Any]:
        node_type: dict[str, Any] = self.file["available_node_types"]["worker"]
        return node_type

    def run_command(self, command: str) -> None:
        """Run a command of the cloud's own tool, or one of `shoal`."""
        raise NotImplementedError

    def apply_fix(self, fix: str) -> None:
        """Apply all steps of a fix; of alternatives, the first one."""
        for step in fix.splitlines():
            if step.startswith("or "):
                break
            self._apply_step(step.partition(", or ")[0])

    def _apply_step(self, step: str) -> None:
        if removed := re.match(r"remove (\S+)", step):
            _for_each_owner(self.file, removed[1], lambda owner: owner.pop(removed[1]))
        elif replaced := re.match(r"replace (\S+) by (\S+)", step):
            old, new = replaced.groups()
            _for_each_owner(self.file, old, lambda owner: owner.update({new: owner.pop(old)}))
        elif added := re.match(r"add to (\w+): (.*)", step):
            rule = yaml.safe_load(added[2])
            _for_each_owner(self.file, added[1], lambda owner: owner[added[1]].append(rule))
        elif step.startswith("export "):
            name, _, value = step.removeprefix("export ").partition("=")
            self.environment[name] = value
        elif step.startswith("unset "):
            self.environment.update(dict.fromkeys(step.split()[1:]))
        elif re.match(r"(aws|gcloud|shoal) ", step):
            self.run_command(step)
        else:
            self._write(yaml.safe_load(step))

    def _write(self, lines: dict[str, Any]) -> None:
        """Write lines into the file: top-level sections are merged, other keys replaced wherever
        they occur, or else added to the head's configuration."""
        for key, value in lines.items():
            if key in ("auth", "docker", "provider", "shoal"):
                self.file[key] = {**self.file.get(key, {}), **value}
            elif not _for_each_owner(self.file, key, functools.partial(_set, key=key, value=value)):
                self.head[key] = value


def _set(owner: dict[str, Any], key: str, value: Any) -> None:
    owner[key] = value


def _for_each_owner(data: Any, key: str, change: Callable[[Any], object]) -> int:
    """Change every mapping in the file that has a key; returns their number."""
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    count = sum(_for_each_owner(child, key, change) for child in list(inner))
    if isinstance(data, dict) and key in data:
        change(data)
        count += 1
    return count


async def preflight(
    scenario: FixableFile, monkeypatch: pytest.MonkeyPatch
) -> list[PreflightFinding]:
    """The findings of preflight, in this process."""
    for name, text in scenario.home.items():
        path = scenario.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
    for name, value in scenario.environment.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    path = scenario.directory / "c.yaml"
    path.write_text(json.dumps(scenario.file, indent=1))
    ctx = Context(emit=lambda event: None, home=scenario.directory / "shoal")
    return await diagnose(ctx, spec.load(path))
