"""Hints are commands that can be pasted and that act on this cluster."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from shoal.core.errors import fix_for_cluster
from tests.cli.shoal_command import Home

pytestmark = pytest.mark.processes

BROKEN = """
cluster_name: broken
provider: {type: embedded}
available_node_types: {head: {resources: {CPU: 1}}}
head_node_type: head
setup_commands: ["false"]
"""
# Commands about all clusters, or about none.
WITHOUT_CLUSTER = {
    "shoal ls", "shoal gc", "shoal down --all", "shoal up", "shoal up cluster.yaml",
    "shoal iam-policy > shoal-policy.json", "shoal train list",
}  # fmt: skip


def pasteable(fix: str) -> list[str]:
    """The commands in a fix: a whole line, or what follows a colon at its end."""
    commands = []
    for line in fix.splitlines():
        if match := re.search(r"(?:^|: )(shoal .*)$", line.removeprefix("or ")):
            commands.append(match[1])
    return commands


def printed(stderr: str) -> list[str]:
    """The commands in the hints that a command printed."""
    lines = re.findall(r"^\s*(?:fix|then|or): (.*)$", stderr, re.MULTILINE)
    return pasteable("\n".join(lines))


def fixes() -> Iterator[tuple[str, str]]:
    """Every literal `fix` in the source, with its location. Values appear as {}."""
    for path in sorted(Path(shoal.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "fix":
                yield f"{path.name}:{node.value.lineno}", literal(node.value)


def literal(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(value) for value in node.values)
    return "{}"


def test_every_command_in_a_hint_names_its_cluster() -> None:
    found = [(where, command) for where, fix in fixes() for command in pasteable(fix)]
    assert len(found) > 20
    assert [
        (where, command)
        for where, command in found
        if not re.match(
            r"shoal (train |job |sweep )?[a-z-]+ (--cluster-name )?(CLUSTER|\{\})", command
        )
        and command not in WITHOUT_CLUSTER
    ] == []


def test_the_cluster_is_filled_in_after_one_word_or_two() -> None:
    assert fix_for_cluster("shoal up CLUSTER", "demo") == "shoal up demo"
    assert fix_for_cluster("shoal job list CLUSTER", "demo") == "shoal job list demo"


def test_a_hint_does_not_explain_behind_its_command() -> None:
    """Such as "shoal up again retries": it cannot be pasted."""
    verbs = r"(again|starts|restarts|sends|creates|restores|retries|launches|lists|adds|replaces)"
    assert [fix for _, fix in fixes() if re.search(rf"shoal [a-z-]+ {verbs}\b", fix)] == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("demo", "retry: shoal up demo"),
        ("x.yaml --cluster-name demo", "retry: shoal up x.yaml --cluster-name demo"),
        ("", "retry: shoal up"),
    ],
)
def test_the_cluster_is_filled_in(arguments: str, expected: str) -> None:
    assert fix_for_cluster("retry: shoal up CLUSTER", arguments) == expected


def test_the_hints_of_a_failed_up_act_on_that_cluster(home: Home, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text(BROKEN)
    done = home.shoal("up", "broken.yaml", "--cluster-name", "demo", cwd=tmp_path)
    assert done.returncode == 6, done.stderr
    (hint,) = printed(done.stderr)
    assert hint == "shoal up broken.yaml --cluster-name demo"
    assert paste(home, tmp_path, hint).returncode == 6
    assert [c["cluster"] for c in home.json("ls")] == ["demo"]
    # Without a name, the only cluster is meant.
    assert home.shoal("plan").returncode == 0
    again = home.shoal("up")
    assert again.returncode == 6
    assert printed(again.stderr) == ["shoal up demo"]
    assert [c["cluster"] for c in home.json("ls")] == ["demo"]


def test_the_hint_for_a_cluster_that_is_not_up_names_it(home: Home, tmp_path: Path) -> None:
    (tmp_path / "ok.yaml").write_text(BROKEN)
    done = home.shoal("get-head-ip", "ok.yaml", cwd=tmp_path)
    assert done.returncode == 3
    assert printed(done.stderr) == ["shoal up ok.yaml"]


def paste(home: Home, cwd: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a hint in a shell, as a user would."""
    env = {**home.env, "PATH": f"{Path(sys.executable).parent}:{home.env['PATH']}"}
    return subprocess.run(
        command, shell=True, env=env, cwd=cwd, capture_output=True, text=True, timeout=60,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
