"""Runs all benchmarks, or the ones that are named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NOT_BENCHMARKS = {"__init__", "__main__", "report"}


def main(names: list[str]) -> int:
    known = sorted(p.stem for p in HERE.glob("*.py") if p.stem not in NOT_BENCHMARKS)
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"unknown benchmark: {', '.join(unknown)}; available: {', '.join(known)}")
        return 2
    missed = [name for name in names or known if not _passes(name)]
    if missed:
        print(f"target missed: {', '.join(missed)}")
    return 1 if missed else 0


def _passes(name: str) -> bool:
    """Run one benchmark in its own process, pass its output through, and read its last line."""
    print(f"== {name}", flush=True)
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    last_line = ""
    with subprocess.Popen(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last_line = line.strip() or last_line
    try:
        return process.returncode == 0 and bool(json.loads(last_line)["pass"])
    except (ValueError, KeyError):
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
