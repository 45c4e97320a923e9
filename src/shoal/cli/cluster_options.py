"""The argument and options that select a cluster, the same in all commands, and their shell
completion."""

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
    """Names of known clusters, then cluster files."""
    from shoal.ops.context import default_home
    from shoal.ops.known_clusters import recorded_names

    names = [n for n in recorded_names(default_home()) if n.startswith(incomplete)]
    start = Path(incomplete)
    folder = start if incomplete.endswith("/") else start.parent
    files = [p for suffix in ("yaml", "yml") for p in sorted(folder.glob(f"*.{suffix}"))]
    prefix = incomplete.removeprefix("./")
    candidates = [*names, *(str(p) for p in files if str(p).startswith(prefix))]
    # Without candidates, let the shell complete directories.
    items = [CompletionItem(candidate) for candidate in candidates]
    return items or [CompletionItem(incomplete, type="file")]


cluster_argument = click.argument("cluster", required=False, shell_complete=complete_cluster)


skip_checks_option = click.option(
    "--skip-checks",
    multiple=True,
    metavar="NAME",
    help="Treat the errors of a preflight check as warnings. Errors show the name in brackets.",
)


def cluster_ref_options(function: F) -> F:
    """`--cluster-name`, `--nodes`, `--key-file` and `--username`. With the CLUSTER argument, if
    the command has it, they are passed to the command as one `ref: ClusterRef`."""

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
        click.option("--username", metavar="USER", help="SSH user for the machines in --nodes."),
        click.option(
            "--key-file", metavar="FILE", help="SSH private key for the machines in --nodes.",
            type=click.Path(),
        ),
        click.option(
            "--nodes", metavar="FILE", type=click.Path(),
            help="Instead of CLUSTER: a list of your own machines, one address per line, the "
            "head first.",
        ),
        click.option(
            "-n", "--cluster-name", metavar="NAME", shell_complete=complete_cluster,
            help="Override the file's cluster_name.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command  # type: ignore[return-value]


node_argument = click.argument(
    "arguments", nargs=-1, metavar="[CLUSTER] [NODE]", shell_complete=complete_cluster
)


def split_node(arguments: tuple[str, ...], ref: ClusterRef) -> tuple[ClusterRef, str | None]:
    """Split `[CLUSTER] [NODE]`. A single argument is a cluster if it is a file or the name of a
    known cluster, else a node of the only cluster."""
    from shoal.ops.cluster_lookup import looks_like_a_file
    from shoal.ops.context import default_home
    from shoal.ops.known_clusters import recorded_names

    if len(arguments) > 2:
        raise click.UsageError("Expected [CLUSTER] [NODE].")
    if not arguments:
        return ref, None
    first = arguments[0]
    is_cluster = len(arguments) == 2 or (
        ref.is_empty and (looks_like_a_file(first) or first in recorded_names(default_home()))
    )
    if not is_cluster:
        return ref, first
    if ref.source is not None:
        raise click.UsageError("Use CLUSTER or --nodes, not both.")
    return replace(ref, source=first), arguments[1] if len(arguments) == 2 else None


def split_paths(
    arguments: tuple[str, ...], ref: ClusterRef
) -> tuple[ClusterRef, tuple[str, str] | None]:
    """Split `[CLUSTER] [SOURCE TARGET]` into the cluster and the paths."""
    source = arguments[0] if len(arguments) in (1, 3) else None
    if len(arguments) > 3 or (source is not None and ref.source is not None):
        raise click.UsageError("Expected [CLUSTER], or [CLUSTER] SOURCE TARGET.")
    if source is not None:
        ref = replace(ref, source=source)
    return ref, (arguments[-2], arguments[-1]) if len(arguments) > 1 else None


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
            raise click.UsageError("--key-file and --username require --nodes.")
        return ClusterRef(cluster, overrides)
    if cluster is not None:
        raise click.UsageError("Use CLUSTER or --nodes, not both.")
    from shoal.spec.nodes_file import NodesFile

    return ClusterRef(NodesFile(nodes, key_file, username), overrides)
