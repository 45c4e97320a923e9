"""Where the controller keeps what it knows, on the head. Paths are below its directory, but for the
directory itself, which is below the home directory."""

from __future__ import annotations

DIRECTORY = ".shoal/controller"
# Beside the directory: the secret by which the cluster's machines know each other.
TOKEN = "auth_token"

HANDOVER = "handover.json"
LAST_HANDOVER = "last-handover.json"
JOURNAL = "journal.jsonl"
USAGE_LEDGER = "usage.jsonl"
LOG = "controller.log"
PULSE = "pulse"
SETUP_LOGS = "logs"
STATE = "state.json"
# Each names the process that holds it.
SUPERVISOR_LOCK = "supervisor.lock"
CONTROLLER_LOCK = "controller.lock"
DEPUTY_LOCK = "deputy.lock"
