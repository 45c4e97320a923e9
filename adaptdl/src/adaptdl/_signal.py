"""Whether this process has been requested to stop."""

from shoal.train.worker.runtime import current_session


def get_exit_flag() -> bool:
    """True after SIGTERM or SIGINT: a checkpoint is written at the next batch, then the process
    exits."""
    return bool(current_session().stop_requested)


current_session()  # as in AdaptDL, the import installs the signal handlers
