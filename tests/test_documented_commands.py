"""Runs the commands of README and the documentation that work on the embedded provider, in a
terminal of 100 columns, and compares their output where it is shown."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import temporary_home
from tests.cli.shoal_command import Home

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Where the commands of a document cannot run on one machine, and why.
SKIPPED = {
    "make ": "installs, or runs the tests themselves",
    ". .venv/": "the environment is this one",
    "cat ": "shows an input file",
    "--nodes": "needs other machines",
    "shoal exec nodes": "needs other machines",
    "shoal cost": "embedded clusters cost nothing",
    "shoal why": "its output depends on the load; the tests of the controller cover it",
}
SKIPPED_DOCUMENTS = {
    "your-machines.md": "needs other machines",
    "aws.md": "needs an AWS account",
    "jobs.md": "tests/jobs runs the same commands",
    "ui.md": "tests/ui drives the page",
}


@pytest.fixture
def home() -> Iterator[Home]:
    with temporary_home() as home:
        yield home


# Everything that differs between two runs: numbers, times and addresses.
_VARIABLE = re.compile(r"[\d.:]+(?:[smh]\b)?")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


@dataclass(frozen=True)
class Step:
    """A command in a document, and the lines that it is shown to print."""

    where: str
    command: str
    output: tuple[str, ...]

    @property
    def skip_reason(self) -> str:
        document = self.where.partition(":")[0]
        reasons = [why for part, why in SKIPPED.items() if part in self.command]
        return SKIPPED_DOCUMENTS.get(document) or (reasons[0] if reasons else "")


def steps(document: Path) -> Iterator[Step]:
    text = document.read_text()
    for block in re.finditer(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        first_line = text.count("\n", 0, block.start()) + 2
        for part in re.finditer(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block[1], re.MULTILINE):
            line = first_line + block[1].count("\n", 0, part.start())
            command = part[1].partition("  #")[0].strip()
            shown = tuple(row for row in part[2].splitlines() if row.strip() not in ("", "..."))
            yield Step(f"{document.name}:{line}", command, shown)


def yaml_block(document: Path) -> str:
    """The cluster.yaml that a document shows."""
    found = re.search(r"^```yaml\n(# cluster.yaml\n.*?)^```", document.read_text(), re.M | re.S)
    assert found is not None
    return found[1]


def normalized(line: str) -> str:
    return " ".join(re.sub("#+", "#", _VARIABLE.sub("#", _ESCAPES.sub("", line))).split())


def run_in_terminal(home: Home, cwd: Path, command: str) -> tuple[int, list[str]]:
    """Run a command on a terminal of 100 columns, as its reader would; returns its exit code and
    the lines that it printed."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
    env = {
        **home.env,
        "TERM": "xterm",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    env.pop("COLUMNS")
    if command.startswith("shoal down") and "--yes" not in command:
        command += " --yes"  # the reader answers the question
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=cwd, env=env, stdin=child, stdout=child, stderr=child
    )
    os.close(child)
    output = b""
    try:
        while data := _read(parent):
            output += data
        return process.wait(120), output.decode(errors="replace").splitlines()
    finally:
        process.kill()
        process.wait()
        os.close(parent)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # no process has the terminal open any more
        return b""


def check(home: Home, cwd: Path, step: Step, *, code: int = 0) -> None:
    returned, printed = run_in_terminal(home, cwd, step.command)
    text = "\n".join(printed)
    assert returned == code, f"{step.where}: {step.command}\n{text}"
    lines = {normalized(line) for line in printed}
    for shown in step.output:
        assert normalized(shown) in lines, f"{step.where}: {shown!r} is not in\n{text}"


ALL_STEPS = [step for document in DOCUMENTS for step in steps(document)]


def test_every_documented_command_is_run_or_skipped_for_a_reason() -> None:
    run = [step for step in ALL_STEPS if not step.skip_reason]
    assert len(run) >= 15
    walked = {"README.md", "getting-started.md", "capacity-planning.md"}
    assert {step.where.partition(":")[0] for step in run} == walked


def walk(home: Home, cwd: Path, document: Path) -> None:
    """Do what a document says, in its order, in a directory with the files that it mentions."""
    (cwd / "examples").symlink_to(ROOT / "examples")
    (cwd / "my_program.py").write_text(MY_PROGRAM)
    (cwd / "cluster.yaml").write_text(yaml_block(document))
    for step in steps(document):
        is_error = any(line.startswith("error:") for line in step.output)
        if not step.skip_reason and not is_error:
            check(home, cwd, step)


MY_PROGRAM = """
import ray
ray.init(log_to_driver=False, logging_level="ERROR")
print("nodes", len([node for node in ray.nodes() if node["Alive"]]))
"""


@pytest.mark.ray
@pytest.mark.timeout(900)  # several clusters come up one after the other
def test_the_readme_works_word_by_word(home: Home, tmp_path: Path) -> None:
    readme = ROOT / "README.md"
    walk(home, tmp_path, readme)
    # The cluster of the file is still up: the block opens it, and terminates it at its end.
    (block,) = re.findall(r"^```python\n(.*?)^```", readme.read_text(), re.M | re.S)
    program = Step("README.md: Python", f"python -c {shlex.quote(block)}", ("nodes 3",))
    check(home, tmp_path, program)
    assert home.instance_ids() == set()


@pytest.mark.ray
@pytest.mark.long
def test_getting_started_works_word_by_word(home: Home, tmp_path: Path) -> None:
    walk(home, tmp_path, ROOT / "docs/getting-started.md")
    assert home.instance_ids() == set()


def test_the_simulation_of_the_guide_runs(tmp_path: Path) -> None:
    guide = ROOT / "docs/guides/capacity-planning.md"
    (trace,) = re.findall(r'^```\n(\{"at".*?)^```', guide.read_text(), re.M | re.S)
    (tmp_path / "trace.jsonl").write_text(trace)
    (tmp_path / "cluster.yaml").write_text(yaml_block(ROOT / "README.md"))
    (step,) = steps(guide)
    check(Home(tmp_path / "home"), tmp_path, step)


def test_the_shown_errors_of_a_cluster_file_are_the_real_ones(tmp_path: Path) -> None:
    (step,) = [s for s in ALL_STEPS if any(line.startswith("error: 2 pro") for line in s.output)]
    good = yaml_block(ROOT / "README.md")
    bad = good.replace("min_workers: 2", "min_workers: -1").replace(
        "head_node_type:", "head_node_typ:"
    )
    (tmp_path / "cluster.yaml").write_text(bad)
    _, printed = run_in_terminal(Home(tmp_path / "home"), tmp_path, step.command)
    assert [line for line in map(normalized, printed) if line] == list(map(normalized, step.output))
