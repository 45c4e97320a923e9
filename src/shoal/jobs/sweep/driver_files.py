"""The files by which a driver and its followers meet, apart from the journal."""

LOCK_FILE = "driver.lock"
PROGRESS_FILE = "progress.json"
