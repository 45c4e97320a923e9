"""Which cluster a command is about: the argument and the options that say so, in all commands
the same, and how a shell completes them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef

F = TypeVar("F", bound=Callable[..., Any])


def complete_cluster(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of clusters that are known here, then cluster files."""
    from shoal.ops.cluster_lookup import remembered_names
    from shoal.ops.context import default_home

    names = [n for n in remembered_names(default_home()) if n.startswith(incomplete)]
    start = Path(incomplete)
    folder = start if incomplete.endswith("/") else start.parent
    files = [p for suffix in ("yaml", "yml") for p in sorted(folder.glob(f"*.{suffix}"))]
    found = [*names, *(str(p) for p in files if str(p).startswith(incomplete.removeprefix("./")))]
    # With nothing to offer, the shell's own completion leads through directories.
    return [CompletionItem(word) for word in found] or [CompletionItem(incomplete, type="file")]


cluster_argument = click.argument("cluster", required=False, shell_complete=complete_cluster)


def cluster_ref_options(function: F) -> F:
    """`--cluster-name`, `--nodes` and what belongs to it, and the argument CLUSTER if the command
    has it: all of it reaches the command as one `ref`."""

    @functools.wraps(function)
    def command(
        *,
        cluster_name: str | None,
        nodes: str | None,
        key_file: str | None,
        username: str | None,
        cluster: str | None = None,
        **rest: Any,
    ) -> Any:
        ref = _cluster_ref(cluster, cluster_name, nodes, key_file, username)
        return function(ref=ref, **rest)

    for option in (
        click.option("--username", metavar="USER", help="Who logs in to the machines of --nodes."),
        click.option(
            "--key-file", metavar="FILE", help="The private key for the machines of --nodes.",
            type=click.Path(),
        ),
        click.option(
            "--nodes", metavar="FILE", type=click.Path(),
            help="Instead of CLUSTER: a list of your own machines, one address a line, the head "
            "first.",
        ),
        click.option(
            "-n", "--cluster-name", metavar="NAME", shell_complete=complete_cluster,
            help="Use this name, not the file's.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command  # type: ignore[return-value]


def paths_of(words: tuple[str, ...], ref: ClusterRef) -> tuple[ClusterRef, tuple[str, str] | None]:
    """The cluster, and the SOURCE and TARGET if they are among the words."""
    named = words[0] if len(words) in (1, 3) else None
    if len(words) > 3 or (named is not None and ref.source is not None):
        raise click.UsageError("Expected [CLUSTER], or [CLUSTER] SOURCE TARGET.")
    if named is not None:
        ref = replace(ref, source=named)
    return ref, (words[-2], words[-1]) if len(words) > 1 else None


def _cluster_ref(
    cluster: str | None,
    cluster_name: str | None,
    nodes: str | None,
    key_file: str | None,
    username: str | None,
) -> ClusterRef:
    from shoal.ops.cluster_lookup import ClusterRef
    from shoal.spec import Overrides

    overrides = Overrides(cluster_name=cluster_name)
    if nodes is None:
        if key_file is not None or username is not None:
            raise click.UsageError("--key-file and --username belong to --nodes.")
        return ClusterRef(cluster, overrides)
    if cluster is not None:
        raise click.UsageError("Name a CLUSTER or give --nodes, not both.")
    from shoal.spec.nodes_file import NodesFile

    return ClusterRef(NodesFile(nodes, key_file, username), overrides)
