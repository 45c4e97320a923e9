"""AdaptDL's API, provided by `shoal.train`."""

import importlib.metadata
import logging
import os


def _report_other_installation() -> None:
    """Petuum's distribution may be installed too: say which of the two is used."""
    try:
        version = importlib.metadata.version("adaptdl")
    except importlib.metadata.PackageNotFoundError:
        return
    if os.environ.get("ADAPTDL_REPLICA_RANK", "0") == "0":
        logging.getLogger("adaptdl").warning(
            "`import adaptdl` is provided by Shoal; the installed adaptdl %s is not used", version
        )


_report_other_installation()
