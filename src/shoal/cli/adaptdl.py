"""`adaptdl-ray` and `adaptdl_on_ray_aws`: `shoal train` under the names that AdaptDL's users know.
It accepts AdaptDL's flags as well."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    from shoal.cli.train import run_command

    run_command(args=sys.argv[1:], prog_name=Path(sys.argv[0]).name)


if __name__ == "__main__":
    main()
