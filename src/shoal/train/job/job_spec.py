"""What a training job runs and needs, and where its files are. Written once, before the job starts.

DIRECTORY/JOB/               on the head
  job.json                   this spec
  code.zip                   the working directory
  journal.jsonl              what happened and why; progress
  output.log                 what rank 0 printed
  status.json                how the job ended
  output.zip                 what the script saved, if that was requested
  checkpoints/               if all nodes share this machine
DIRECTORY/JOB/node-ID/       on each node: code/, share/, tensorboard/, logs/WORKER.log
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shoal.train.job.sizing import SIZE

NAMESPACE = "shoal-train"
# One GPU for each worker where the cluster has GPUs, else none.
AUTO_GPUS = -1.0
# How the number of workers changes; AUTO: as the script's own calls require.
AUTO = "auto"
IN_PLACE = "in-place"
RESTART = "restart"
JOB_FILE = "job.json"
CODE_FILE = "code.zip"
JOURNAL_FILE = "journal.jsonl"
OUTPUT_LOG = "output.log"
STATUS_FILE = "status.json"
OUTPUT_FILE = "output.zip"
HEARTBEAT_FILE = "heartbeat"


@dataclass(frozen=True)
class JobSpec:
    """`script` is relative to the working directory. `checkpoint_dir` and `share` may be empty."""

    id: str
    script: str
    arguments: tuple[str, ...] = ()
    max_workers: int = 1
    min_workers: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    directory: str = "~/.shoal/train"
    checkpoint_dir: str = ""
    share: str = ""
    checkpoint_timeout_s: float = 120.0
    rescale_timeout_s: float = 60.0
    rescale_mode: str = IN_PLACE
    objective: str = SIZE
    worker_price: float = 0.0  # dollars per hour; 0 if not known
    other_price: float = 0.0  # of the head
    collects_output: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0
    resumes: bool = False  # an earlier run of the same job

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> JobSpec:
        values = json.loads(text)
        values["arguments"] = tuple(values["arguments"])
        return JobSpec(**values)

    @property
    def path(self) -> Path:
        """The job's directory on this machine."""
        return Path(self.directory).expanduser() / self.id

    def node_path(self, node: str) -> Path:
        """The job's directory for one node; several nodes may share a machine."""
        return self.path / f"node-{node[:12]}"

    @property
    def has_local_checkpoints(self) -> bool:
        """Whether its checkpoints may be on the disk of one node."""
        return bool(self.checkpoint_dir) and "://" not in self.checkpoint_dir

    @property
    def actor_name(self) -> str:
        return f"controller-{self.id}"

    def agent_name(self, node: str) -> str:
        return f"agent-{self.id}-{node}"

    def resources(self) -> dict[str, float]:
        """What one worker needs."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}
