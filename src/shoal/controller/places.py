"""Where the controller keeps what it knows, on the head. Paths are below its directory, but for the
directory itself, which is below the home directory."""

from __future__ import annotations

DIRECTORY = ".shoal/controller"

HANDOVER = "handover.json"
JOURNAL = "journal.jsonl"
LOG = "controller.log"
SETUP_LOGS = "logs"
STATE = "state.json"
# Each names the process that holds it.
SUPERVISOR_LOCK = "supervisor.lock"
CONTROLLER_LOCK = "controller.lock"
