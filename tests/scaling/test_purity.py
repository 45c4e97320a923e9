"""The planner is pure."""

from __future__ import annotations

import subprocess
import sys


def test_the_planner_needs_nothing_but_the_standard_library() -> None:
    """It runs on the head, where there is no numpy, and must never call Ray or a cloud."""
    code = (
        "import sys; import shoal.scaling, shoal.scaling.simulation; "
        "print({'ray', 'numpy', 'boto3', 'yaml', 'pydantic', 'asyncio'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
