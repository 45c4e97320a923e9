"""What kind of training a script does, as far as its source tells: which names it imports and
calls, in itself and in the modules beside it. What the source does not tell is found out while
the script runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from shoal.train.job.job_spec import AUTO, IN_PLACE, RESTART

_MAX_MODULES = 200
_TORCHRUN_VARIABLES = {"LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
_TRAINER_PACKAGES = {"accelerate", "lightning", "pytorch_lightning"}
# Those of shoal.train that make a script elastic; others are for scripts of torchrun, too.
_ELASTIC_NAMES = {"init", "prepare"}


def rescale_mode(directory: Path, script: str) -> str:
    """How the workers of this script change: in place if it uses the training library, by restart
    if it makes its own process group as under torchrun, and automatic if that is not clear."""
    kinds = {kind for tree in _trees(directory, script) for kind in _kinds(tree)}
    if IN_PLACE in kinds:
        return IN_PLACE
    return RESTART if RESTART in kinds else AUTO


def _trees(directory: Path, script: str) -> Iterator[ast.AST]:
    """The script and the modules of its directory that it imports, directly or not."""
    waiting = [directory / script]
    seen: set[Path] = set()
    roots = {directory, (directory / script).parent}
    while waiting and len(seen) < _MAX_MODULES:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # the script's own run reports it
        yield tree
        for module in _imports(tree):
            parts = module.split(".")
            for root in roots:
                target = root.joinpath(*parts)
                waiting += [target.with_suffix(".py"), target / "__init__.py"]
        waiting = [p for p in waiting if p.is_file()]


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _kinds(tree: ast.AST) -> Iterator[str]:
    modules = set(_imports(tree))
    packages = {module.split(".")[0] for module in modules}
    names = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    names |= {module.rsplit(".", 1)[-1] for module in modules}
    uses_own_api = any(m == "shoal.train" or m.startswith("shoal.train.") for m in modules)
    uses_adaptdl = "adaptdl" in packages or any(m.startswith("shoal.train.torch") for m in modules)
    if uses_adaptdl or (uses_own_api and names & _ELASTIC_NAMES):
        yield IN_PLACE
    calls = {_name(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
    trainers = any(name.endswith("Trainer") for name in names) and "transformers" in packages
    if (
        "init_process_group" in calls
        or texts & _TORCHRUN_VARIABLES
        or packages & _TRAINER_PACKAGES
        or trainers
    ):
        yield RESTART


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
