"""A command that was interrupted or killed is finished by the next one."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.shoal_command import Home
from tests.polling import until

pytestmark = pytest.mark.ray


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
async def test_down_terminates_what_an_interrupted_up_started(
    home: Home, signal_number: signal.Signals
) -> None:
    process = home.start("up", "--json")
    assert process.stdout is not None
    for line in process.stdout:
        if '"starting"' in line:
            break
    instance_ids = home.instance_ids()
    await until(lambda: any("gcs" in entry for entry in home.leftovers(instance_ids)), timeout=120)
    process.send_signal(signal_number)
    rest = process.communicate(timeout=90)[0]
    if signal_number is signal.SIGINT:
        assert process.returncode == 130
        assert '"interrupted"' in rest
    assert len(instance_ids) == 3
    done = home.shoal("down", "--all", "--yes")
    assert done.returncode == 0, done.stderr
    assert home.leftovers(instance_ids) == []


def test_a_failed_setup_command_shows_its_output_and_can_be_corrected(
    home: Home, tmp_path: Path
) -> None:
    yaml = tmp_path / "c.yaml"
    lines = [
        "provider: {type: embedded}",
        "cluster_name: broken",
        "min_workers: 0",
        "setup_commands: ['echo looking for it; ls /no/such/file']",
    ]
    yaml.write_text("\n".join(lines))
    done = home.shoal("up", str(yaml))
    assert done.returncode == 6, done.stderr
    assert "setup command 1 of 1 failed with exit code 2" in done.stderr
    assert "| looking for it" in done.stderr
    assert "fix:" in done.stderr
    assert "Traceback" not in done.stderr

    yaml.write_text("\n".join([*lines[:3], "setup_commands: ['true']"]))
    done = home.shoal("up", str(yaml))
    assert done.returncode == 0, done.stderr
    assert "broken is ready: 1 node" in done.stderr
