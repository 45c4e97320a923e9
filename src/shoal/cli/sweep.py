"""`shoal sweep`"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.cluster_options import cluster_ref_options, complete_cluster
from shoal.cli.env_option import env_option
from shoal.cli.exec_options import code_option, requirements_option, start_option, stop_option
from shoal.cli.run import output_options, run
from shoal.cli.trailing_arguments import TrailingArgumentsCommand, trailing_arguments
from shoal.cli.up import autostop_option

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef
    from shoal.ops.context import Context
    from shoal.ops.sweep import SweepOptions
    from shoal.ops.up import UpOptions
    from shoal.spec.cluster_spec import ClusterSpec

_MIB = 2**20


class _SweepGroup(click.Group):
    """`shoal sweep train.py` runs a sweep; `shoal sweep show` and the others manage one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["run", *args]
        elif args[0] in ctx.help_option_names:
            args = ["run", "--help"]
        return super().parse_args(ctx, args)


@click.group("sweep", cls=_SweepGroup, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Run a script many times with different parameters."""


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    from shoal.spec.durations import seconds

    try:
        return None if value is None else seconds(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}, not {value}") from None


_detach_option = click.option(
    "--detach", is_flag=True, help="Return when the sweep has started; `resume` fetches results."
)
_retry_failed_option = click.option(
    "--retry-failed", is_flag=True, help="Repeat the runs that have failed."
)


@command.command("run", cls=TrailingArgumentsCommand)
@click.argument(
    "arguments", nargs=-1, required=True, metavar="SCRIPT [CLUSTER] [-- ARGUMENTS]",
    shell_complete=complete_cluster,
)  # fmt: skip
@click.option(
    "--grid", "-g", multiple=True, metavar="NAME=VALUES",
    help="Values of a parameter: lr=0.1,0.01 or seed=1..10. All combinations are run. Can be "
    "repeated.",
)  # fmt: skip
@click.option(
    "--random", "-r", multiple=True, metavar="NAME=DISTRIBUTION",
    help="Draw a parameter: uniform(A,B), loguniform(A,B), randint(A,B) or choice(A,B,C). Can be "
    "repeated.",
)  # fmt: skip
@click.option(
    "--samples", type=click.IntRange(min=1), metavar="N",
    help="Draws for each point of the grid.",
)  # fmt: skip
@click.option("--random-seed", type=int, metavar="N", help="Seed of the draws. Default: 0.")
@click.option(
    "--style", type=click.Choice(["flags", "hydra", "sacred"]),
    help="How the script gets parameters: as --lr 0.1, as Hydra overrides, or as Sacred updates. "
    "Default: by what it imports.",
)  # fmt: skip
@click.option(
    "--template", metavar="TEXT",
    help="The script's arguments, for other scripts: '{lr} --seed {seed}'.",
)  # fmt: skip
@click.option(
    "--cpus", type=click.FloatRange(min=0), metavar="N", help="CPUs of each run. Default: 1."
)
@click.option(
    "--gpus", type=click.FloatRange(min=0), metavar="N",
    help="GPUs of each run, such as 0.5. Default: 0.",
)  # fmt: skip
@click.option(
    "--retries", type=click.IntRange(min=0), metavar="N",
    help="Repeat a run that fails. One that is lost with its node is repeated anyway. Default: 0.",
)  # fmt: skip
@click.option(
    "--time-limit", callback=_seconds, metavar="TIME", help="End a run after 90s, 30m or 2h."
)
@click.option(
    "--max-failures", type=click.IntRange(min=1), metavar="N",
    help="Stop the sweep when so many runs have failed.",
)  # fmt: skip
@click.option(
    "--output-limit", type=click.FloatRange(min=0, min_open=True), metavar="MIB",
    help="What is kept of a run's output, its beginning and its end. Default: 1.",
)  # fmt: skip
@click.option(
    "--artifact-limit", type=click.FloatRange(min=0), metavar="MIB",
    help="What is kept of the files that a run writes. Default: 256.",
)  # fmt: skip
@click.option(
    "-o", "--output", metavar="DIR", type=click.Path(path_type=Path),
    help="Where results go. A directory with a sweep is continued. Default: a new one in sweeps/.",
)  # fmt: skip
@_retry_failed_option
@_detach_option
@code_option
@requirements_option
@env_option
@stop_option
@start_option
@autostop_option
@cluster_ref_options
@output_options
@click.pass_context
def run_command(
    click_ctx: click.Context,
    /,
    arguments: tuple[str, ...],
    ref: ClusterRef,
    start: bool,
    stop: bool,
    autostop: float | None,
    json: bool,
    verbose: int,
    **given: Any,
) -> None:
    """Run SCRIPT once for each point of a parameter space, and collect the results.

    SCRIPT is a Python file, or the YAML file of a sweep. CLUSTER is a YAML file or the name of a
    cluster. Default: the only cluster that is up. The sweep runs on the cluster: it goes on if this
    program ends, and the same --output continues it. Arguments after `--` go to every run.

    \b
    shoal sweep train.py --grid lr=0.1,0.01 --grid seed=1..10 -- --epochs 3
    shoal sweep train.py --random 'lr=loguniform(1e-5,1e-1)' --samples 20 --gpus 0.5
    shoal sweep sweep.yaml cluster.yaml --start --stop
    shoal sweep show DIR      print the results and draw a plot
    shoal sweep resume DIR    continue a sweep, and fetch its results
    shoal sweep stop DIR      stop a sweep
    """
    from shoal.ops.sweep import sweep

    if len(arguments) > 2 or (len(arguments) == 2 and ref.source is not None):
        raise click.UsageError("Expected SCRIPT [CLUSTER]. Put arguments of the script after --.")
    given["arguments"] = trailing_arguments(click_ctx)
    _check_autostop(autostop, start=start)

    async def operation(ctx: Context) -> int:
        options, cluster = _options(Path(arguments[0]), given)
        source = arguments[1] if len(arguments) == 2 else cluster
        chosen = ref if source is None or ref.source is not None else replace(ref, source=source)
        spec, applied = await _locate(ctx, chosen, autostop, start=start)
        return await sweep(ctx, spec, options, start=start, stop=stop, applied=applied)

    sys.exit(_run_with_view(operation, json=json, verbose=verbose))


_directory_argument = click.argument(
    "arguments", nargs=-1, required=True, metavar="DIR [CLUSTER]", shell_complete=complete_cluster
)


@command.command("resume")
@_directory_argument
@_retry_failed_option
@_detach_option
@env_option
@stop_option
@start_option
@autostop_option
@cluster_ref_options
@output_options
def resume_command(
    arguments: tuple[str, ...],
    ref: ClusterRef,
    start: bool,
    stop: bool,
    autostop: float | None,
    json: bool,
    verbose: int,
    **flags: Any,
) -> None:
    """Continue the sweep in DIR: fetch what has ended, and run what is not done.

    CLUSTER is by default the one that the sweep ran on.
    """
    from shoal.ops.sweep import resume

    _check_autostop(autostop, start=start)

    async def operation(ctx: Context) -> int:
        path, chosen = _directory(arguments, ref)
        spec, applied = await _locate(ctx, chosen, autostop, start=start)
        return await resume(ctx, spec, path, start=start, stop=stop, applied=applied, **flags)

    sys.exit(_run_with_view(operation, json=json, verbose=verbose))


@command.command("stop")
@_directory_argument
@cluster_ref_options
@output_options
def stop_command(arguments: tuple[str, ...], ref: ClusterRef, json: bool, verbose: int) -> None:
    """Stop the sweep in DIR, with the runs that are running. `resume` continues it."""
    from shoal.ops.sweep import stop_sweep

    async def operation(ctx: Context) -> None:
        path, chosen = _directory(arguments, ref)
        spec, _ = await _locate(ctx, chosen, None, start=False)
        await stop_sweep(ctx, spec, path)

    run(operation, json=json, verbose=verbose, resumable=False)


@command.command("show")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--sort", default="", metavar="NAME", help="A metric, a parameter, or seconds.")
@click.option("--descending", is_flag=True, help="The largest first.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show the first N runs.")
@click.option("--plot", default="", metavar="NAME", help="The parameter on the plot's axis.")
@click.option("--metric", default="", metavar="NAME", help="The metric on the plot's other axis.")
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write the plot to a file."
)
@output_options
def show_command(
    directory: Path,
    sort: str,
    descending: bool,
    limit: int | None,
    plot: str,
    metric: str,
    svg: Path | None,
    json: bool,
    verbose: int,
) -> None:
    """Print the results of a sweep, sorted by its first metric, and draw a plot of it."""
    import json as json_module

    from shoal.cli.formatting import columns
    from shoal.jobs.sweep.plot import as_svg, as_text, plot_of
    from shoal.jobs.sweep.table import table

    async def operation(ctx: Context) -> Any:
        from shoal.ops.sweep import show

        results, total = show(directory, sort, descending=descending)
        return results, total, plot_of(results, plot, metric)

    results, total, picture = run(operation, json=json, verbose=verbose, result_only=True)
    if svg and picture is not None:
        svg.write_text(as_svg(picture), "utf-8")
    if json:
        click.echo(json_module.dumps(results[:limit]))
        return
    header, rows = table(results[:limit])
    for line in columns(header, rows):
        click.echo(line)
    click.echo(f"{len(results)} of {total} runs have ended")
    if picture is not None:
        for line in ("", *as_text(picture)):
            click.echo(line)


def _options(script: Path, given: dict[str, Any]) -> tuple[SweepOptions, str | None]:
    """The options of the command line, and those of a sweep's file for what it leaves open; and
    the cluster that the file names."""
    from shoal.jobs.sweep.space import Space, parse_grid, parse_random
    from shoal.ops.sweep import SweepOptions

    file: dict[str, Any] = {}
    if script.suffix in (".yaml", ".yml"):
        from shoal.jobs.sweep.sweep_file import read_sweep_file

        file = read_sweep_file(script)
        if "script" not in file:
            from shoal.core.errors import ConfigError

            raise ConfigError(f"{script} has no script", fix="add a line: script: train.py")
    chosen = {n: v for n, v in given.items() if v not in (None, (), {}) and v is not False}
    values = {**file, **chosen}
    space = Space(
        grid={**file.get("grid", {}), **dict(map(parse_grid, given["grid"]))},
        random={**file.get("random", {}), **dict(map(parse_random, given["random"]))},
        samples=int(values.pop("samples", 0)),
        seed=int(values.pop("random_seed", 0)),
    )
    for name in ("grid", "random"):
        values.pop(name, None)
    for limit, name in (("output_limit", "output_bytes"), ("artifact_limit", "artifact_bytes")):
        if limit in values:
            values[name] = int(values.pop(limit) * _MIB)
    if (limit := values.pop("time_limit", None)) is not None:
        values["time_limit_s"] = _file_seconds(limit) if isinstance(limit, str) else limit
    cluster = values.pop("cluster", None)
    values["script"] = file.get("script", script)
    return SweepOptions(space=space, **values), cluster


def _file_seconds(text: str) -> float:
    from shoal.core.errors import ConfigError
    from shoal.spec.durations import seconds

    try:
        return seconds(text)
    except ValueError as error:
        raise ConfigError(f"time_limit {error}, not {text}") from None


def _directory(arguments: tuple[str, ...], ref: ClusterRef) -> tuple[Path, ClusterRef]:
    from shoal.ops.sweep import load_state

    if len(arguments) > 2 or (len(arguments) == 2 and ref.source is not None):
        raise click.UsageError("Expected DIR [CLUSTER].")
    path = Path(arguments[0])
    source = arguments[1] if len(arguments) == 2 else load_state(path).cluster
    if source and ref.is_empty:
        ref = replace(ref, source=source)
    return path, ref


def _check_autostop(autostop: float | None, *, start: bool) -> None:
    if autostop is not None and not start:
        raise click.UsageError("--autostop requires --start.")


async def _locate(
    ctx: Context, ref: ClusterRef, autostop: float | None, *, start: bool
) -> tuple[ClusterSpec, UpOptions | None]:
    """The cluster, and the options of `up` that the command sets."""
    from shoal.ops import cluster_lookup
    from shoal.ops.up import UpOptions

    ref = replace(ref, overrides=replace(ref.overrides, autostop=autostop))
    locate = cluster_lookup.locate_or_default if start else cluster_lookup.locate
    located = await locate(ctx, ref)
    if autostop is None:
        return located.spec, None
    return located.spec, UpOptions(flags=located.flags, source_of=located.source_of)


def _run_with_view(
    operation: Callable[[Context], Awaitable[Any]], *, json: bool, verbose: int
) -> Any:
    async def with_view(ctx: Context) -> Any:
        if json:
            return await operation(ctx)
        from shoal.cli.render.sweep import SweepView

        view = SweepView(ctx.emit)
        try:
            return await operation(replace(ctx, emit=view.event))
        finally:
            view.close()

    return run(with_view, json=json, verbose=verbose, resumable=False)
