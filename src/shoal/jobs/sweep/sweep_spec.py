"""What a sweep runs, as the laptop decided it and the driver on the head reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from shoal.jobs.sweep.command import Style, arguments_of
from shoal.jobs.sweep.space import Params, key

SPEC_FILE = "sweep.json"

DEFAULT_OUTPUT_BYTES = 2**20
DEFAULT_ARTIFACT_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Run:
    """`number` counts from 1 and never changes, so that a directory can be resumed."""

    number: int
    params: Params

    @property
    def key(self) -> str:
        return key(self.params)


@dataclass(frozen=True)
class SweepSpec:
    """`script` is relative to the code's directory. `retries` is how often a failed run is
    repeated; a run that is lost with its node is repeated in any case. `code` is the directory
    of the code, relative to the current directory of a Ray task. The laptop has the results of
    `skip` already. `repeat_failed` names a request to repeat what has failed so far; each is
    carried out once."""

    id: str
    script: str
    runs: tuple[Run, ...] = ()
    style: Style = "flags"
    template: str = ""
    arguments: tuple[str, ...] = ()
    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 0
    time_limit_s: float | None = None
    output_bytes: int = DEFAULT_OUTPUT_BYTES
    artifact_bytes: int = DEFAULT_ARTIFACT_BYTES
    max_failures: int = 0
    code: str = "."
    created: float = 0.0
    skip: tuple[int, ...] = ()
    repeat_failed: str = ""

    def argv(self, run: Run) -> list[str]:
        """The script and its arguments."""
        arguments = arguments_of(
            self.style, run.params, self.arguments,
            template=self.template, run=run.number, sweep=self.id,
        )  # fmt: skip
        return [self.script, *arguments]

    def with_params(self, params: Sequence[Params]) -> SweepSpec:
        """The same sweep with these runs: those it has keep their numbers, new ones are added, and
        none are removed."""
        known = {run.key for run in self.runs}
        number = max((run.number for run in self.runs), default=0)
        runs = list(self.runs)
        for entry in params:
            if key(entry) not in known:
                number += 1
                runs.append(Run(number, entry))
                known.add(key(entry))
        return replace(self, runs=tuple(runs))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> SweepSpec:
        entry: dict[str, Any] = json.loads(text)
        entry["runs"] = tuple(Run(run["number"], run["params"]) for run in entry["runs"])
        entry["arguments"] = tuple(entry["arguments"])
        entry["skip"] = tuple(entry["skip"])
        return SweepSpec(**entry)


def run_name(number: int) -> str:
    """The name of a run's directory."""
    return f"{number:04}"
