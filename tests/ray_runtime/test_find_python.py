"""How the Python of a running Ray is found, with what its programs need from Ray's environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.ray_runtime.ray_start import find_python_command
from tests.polling import until

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")


async def test_programs_connect_to_ray_with_its_tls_settings(tmp_path: Path) -> None:
    raylet = tmp_path / "raylet"
    raylet.symlink_to(sys.executable)
    worker = f"--python_worker_command={sys.executable} worker.py"
    tls = {"RAY_USE_TLS": "1", "RAY_TLS_CA_CERT": str(tmp_path / "ca of mine.pem")}
    environment = {"RAY_CLOUD_INSTANCE_ID": str(tmp_path), "RAY_other": "1", **tls}
    running = subprocess.Popen(
        [raylet, "-c", "input()", worker], stdin=subprocess.PIPE, env=environment
    )
    try:
        process = Path(f"/proc/{running.pid}")
        await until(lambda: (process / "comm").read_text() == "raylet\n", "it runs")
        find = find_python_command(str(tmp_path))
        show = 'printf "%s\\n" "$SHOAL_RAY_PYTHON" "$RAY_USE_TLS" "$RAY_TLS_CA_CERT" "$RAY_other"'
        shell = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        done = subprocess.run(
            ["sh", "-c", f"{find}\n{show}"], env=shell, capture_output=True, text=True, check=True
        )
    finally:
        running.kill()
        running.wait()
    assert done.stdout.splitlines() == [sys.executable, *tls.values(), ""], done.stderr
