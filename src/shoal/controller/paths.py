"""Names of the controller's files on the head. All are in `DIRECTORY`, which is relative to the
home directory."""

from __future__ import annotations

DIRECTORY = ".shoal/controller"
# Beside DIRECTORY: the secret with which the nodes of the cluster authenticate.
TOKEN = "auth_token"

CONFIG = "config.json"
# The config of a controller that `shoal up` has paused.
PAUSED_CONFIG = "paused-config.json"
# The config of a controller that is loaded while `shoal up` still bootstraps workers.
PREPARED_CONFIG = "prepared-config.json"
JOURNAL = "journal.jsonl"
USAGE_LEDGER = "usage.jsonl"
# What people look at later; see history.py.
HISTORY = "history.jsonl"
SAMPLES = "samples.jsonl"
# A directory of empty files, each named after the instance that a user wants drained.
DRAIN_REQUESTS = "drain"
LOG = "controller.log"
HEARTBEAT = "heartbeat"
BOOTSTRAP_LOGS = "logs"
STATE = "state.json"
# When the supervisor restarted a controller that had died soon after its start: a time per line.
RESTARTS = "restarts"
# Names the package that was deployed last.
VERSION = "version"
# Run by cron.
RESTART_SCRIPT = "restart.sh"
# Each lock file contains the process id of its holder.
SUPERVISOR_LOCK = "supervisor.lock"
CONTROLLER_LOCK = "controller.lock"
STANDBY_LOCK = "standby.lock"

# What `terminate-workers` prints before the name of a worker that its provider does not list.
UNLISTED = "unlisted"
