"""Jobs that bring their cluster up, and end it: `--start`, `--stop` and `--autostop`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import temporary_home
from tests.cli.shoal_command import Home
from tests.polling import until

pytestmark = pytest.mark.ray

YAML = """
cluster_name: short
max_workers: 0
provider: {type: embedded}
available_node_types:
  head: {resources: {CPU: 1}}
head_node_type: head
"""


@pytest.fixture
def home() -> Iterator[Home]:
    with temporary_home() as home:
        yield home


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(YAML)
    return str(path)


def test_a_cluster_lives_as_long_as_its_job_and_the_exit_code_is_the_jobs(
    home: Home, file: str
) -> None:
    done = home.shoal("job", "submit", file, "--start", "--stop", "--", "echo hello; exit 3")
    assert done.returncode == 3, done.stderr
    assert "hello\n" in done.stdout
    assert home.instance_ids() == set()
    refused = home.shoal("job", "submit", file, "--stop", "--detach", "--", "true")
    assert refused.returncode == 2
    assert "--start --autostop 10m" in refused.stderr


@pytest.mark.long
async def test_autostop_waits_for_a_job_that_does_not_use_ray(
    home: Home, file: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    # Longer than the time of autostop, and no Ray in it.
    job = f"for n in $(seq 30); do echo $n >> {log}; sleep 1; done"
    done = home.shoal("job", "submit", file, "--start", "--autostop", "5s", "--detach", "--", job)
    assert done.returncode == 0, done.stderr
    assert len(home.instance_ids()) == 1
    await until(lambda: not home.instance_ids(), "autostop ends the cluster", timeout=180)
    assert log.read_text().split()[-1] == "30", "the job ran to its end"
    followed = home.shoal("job", "list", file)
    assert followed.returncode == 3
    assert "autostop" in followed.stderr
