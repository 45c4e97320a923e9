"""`python -m tests.simcloud clean`: end what killed tests left behind."""

from __future__ import annotations

import sys

from tests.simcloud.sweep import sweep


def main() -> None:
    if sys.argv[1:] != ["clean"]:
        sys.exit("usage: python -m tests.simcloud clean")
    killed = sweep()
    print(f"ended {len(killed)} processes that killed tests left behind")


if __name__ == "__main__":
    main()
