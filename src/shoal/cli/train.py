"""`shoal train`"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.cluster_options import complete_cluster
from shoal.cli.exec_options import start_option, stop_option
from shoal.cli.run import output_options, run

if TYPE_CHECKING:
    from shoal.ops.context import Context
    from shoal.ops.train import TrainingJobs


class _TrainGroup(click.Group):
    """`shoal train -f code.py` runs a script; `shoal train list` and the others manage jobs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            names = ", ".join(name for name in self.commands if name != "run")
            message = f"No such command {args[0]!r}: use one of {names}, or -f SCRIPT."
            raise click.UsageError(message, ctx)
        if not args or args[0] not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group("train", cls=_TrainGroup, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Run a training script on a cluster, with workers that come and go."""


def _gpus(ctx: click.Context, param: click.Parameter, value: str) -> float:
    from shoal.train.job.job_spec import AUTO_GPUS

    if value == "auto":
        return AUTO_GPUS
    try:
        number = float(value)
    except ValueError:
        number = -1
    if number < 0:
        raise click.BadParameter(f"{value!r} is not a number of GPUs, or auto.")
    return number


_cluster_option = click.option(
    "-u", "--cluster", "cluster", metavar="CLUSTER", shell_complete=complete_cluster,
    help="A cluster's name or YAML file, or the address of any Ray cluster: ray://HOST:PORT or "
    "http://HOST:PORT. Default: the only cluster that is up, or the embedded one.",
)  # fmt: skip


@command.command("run", context_settings={"ignore_unknown_options": True})
@click.option("-f", "--file", "script", metavar="SCRIPT", required=True, help="Python file.")
@click.option(
    "-m", "--max-workers", "--max-cluster-size", "max_workers", metavar="N", default=1,
    show_default=True, type=click.IntRange(min=1), help="Workers at most.",
)  # fmt: skip
@click.option(
    "--min-workers", metavar="N", default=1, show_default=True, type=click.IntRange(min=1),
    help="Workers to start with, if they are available within --cluster-rescale-timeout.",
)  # fmt: skip
@click.option(
    "--cpus", metavar="N", default=1.0, show_default=True, help="CPUs of each worker.",
    type=click.FloatRange(min=0),
)  # fmt: skip
@click.option(
    "--gpus", metavar="N", default="auto", show_default=True, callback=_gpus,
    help="GPUs of each worker; auto is 1 if the cluster has GPUs, else 0.",
)  # fmt: skip
@click.option(
    "-d", "--working-dir", metavar="DIR", type=click.Path(path_type=Path),
    help="Directory to copy to the nodes; SCRIPT is relative to it. Default: that of SCRIPT.",
)  # fmt: skip
@click.option(
    "--checkpoint-dir", metavar="URL", default="",
    help="Where checkpoints are written: a path that all nodes share, or an fsspec URL.",
)  # fmt: skip
@click.option(
    "--share", metavar="DIR", default="", help="Data directory on the nodes, such as an EFS mount."
)
@click.option(
    "--output", metavar="DIR", type=click.Path(path_type=Path),
    help="Copy the files that the script saved in its directory to DIR.",
)  # fmt: skip
@click.option("--resume", metavar="JOB", default="", help="Continue from a job's checkpoint.")
@click.option("--detach", is_flag=True, help="Return when the job has started.")
@click.option(
    "--checkpoint-timeout", metavar="SECONDS", default=120.0, show_default=True,
    type=click.FloatRange(min=0), help="How long to wait for a last checkpoint.",
)  # fmt: skip
@click.option(
    "--cluster-rescale-timeout", metavar="SECONDS", default=60.0, show_default=True,
    type=click.FloatRange(min=0), help="How long to wait for --min-workers nodes.",
)  # fmt: skip
@click.option(
    "--rescale-mode", type=click.Choice(["auto", "in-place", "restart"]), default="auto",
    show_default=True,
    help="How the number of workers changes. restart ends all workers after a checkpoint and "
    "starts them again, with the variables that torchrun sets. auto is in-place for scripts that "
    "use shoal.train or adaptdl, and restart for those that torchrun would run.",
)  # fmt: skip
@click.option(
    "--objective", type=click.Choice(["time", "cost", "balanced", "size"]), default="time",
    show_default=True,
    help="What the number of workers is chosen for, by the goodput that is measured while the "
    "script trains. size uses --max-workers without measuring.",
)  # fmt: skip
@click.option("--port-offset", type=int, hidden=True, expose_value=False)
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS]", type=click.UNPROCESSED)
@_cluster_option
@stop_option
@start_option
@output_options
def run_command(
    script: str,
    arguments: tuple[str, ...],
    cluster: str | None,
    start: bool,
    stop: bool,
    json: bool,
    verbose: int,
    checkpoint_timeout: float,
    cluster_rescale_timeout: float,
    **options: Any,
) -> None:
    """Run a training script with up to N workers, and exit with its status.

    Workers join and leave while it trains; lost ones are replaced. The job runs on the cluster
    and goes on if the connection is lost; Ctrl-C stops it after a checkpoint. Arguments after
    `--` are passed to the script unchanged.

    \b
    shoal train -f code.py -m 4 --start -- --epochs 3
    shoal train list          list jobs
    shoal train logs JOB      show what the script printed; -f follows it
    shoal train stop JOB      stop a job after a checkpoint
    shoal train resize JOB N  change the number of workers
    shoal train explain JOB   show why a job has its number of workers
    """
    from shoal.ops.train import TrainOptions, check_code, train

    chosen = TrainOptions(
        script=script,
        arguments=arguments,
        checkpoint_timeout_s=checkpoint_timeout,
        rescale_timeout_s=cluster_rescale_timeout,
        **options,
    )

    async def operation(ctx: Context) -> int:
        check_code(chosen)  # first: a mistake in the command needs no cluster
        spec = await _resolve(ctx, cluster, or_default=start)
        return await train(ctx, spec, chosen, start=start, stop=stop)

    sys.exit(_run_with_view(operation, json=json, verbose=verbose))


@command.command("list")
@_cluster_option
@output_options
def list_command(cluster: str | None, json: bool, verbose: int) -> None:
    """List the training jobs of a cluster."""
    import json as json_module

    from shoal.cli.formatting import columns

    jobs = _call(cluster, lambda jobs: jobs.jobs(), json=json, verbose=verbose, result_only=True)
    if json:
        click.echo(json_module.dumps(jobs))
        return
    rows = [
        [
            j["job"],
            j["state"],
            _text(j, "workers"),
            _text(j, "epoch"),
            _text(j, "step"),
            j["script"],
        ]
        for j in jobs
    ]
    for line in columns(["JOB", "STATE", "WORKERS", "EPOCH", "STEP", "SCRIPT"], rows):
        click.echo(line)


@command.command("logs")
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@click.option("--worker", default="", help="The log of one worker on the head's disk, such as w2.")
@_cluster_option
@output_options
def logs_command(
    job: str, follow: bool, worker: str, cluster: str | None, json: bool, verbose: int
) -> None:
    """Show what a job's script printed."""

    async def logs(jobs: TrainingJobs) -> int:
        if follow:
            return await jobs.follow(job)
        await jobs.logs(job, worker)
        return 0

    sys.exit(_call(cluster, logs, json=json, verbose=verbose))


@command.command("stop")
@click.argument("job")
@_cluster_option
@output_options
def stop_command(job: str, cluster: str | None, json: bool, verbose: int) -> None:
    """Stop a job after a checkpoint. `--resume JOB` continues it."""
    _call(cluster, lambda jobs: jobs.stop(job), json=json, verbose=verbose)


@command.command("resize")
@click.argument("job")
@click.argument("workers", type=click.IntRange(min=1))
@_cluster_option
@output_options
def resize_command(job: str, workers: int, cluster: str | None, json: bool, verbose: int) -> None:
    """Change the number of workers of a running job."""
    _call(cluster, lambda jobs: jobs.resize(job, workers), json=json, verbose=verbose)


@command.command("explain")
@click.argument("job")
@_cluster_option
@output_options
def explain_command(job: str, cluster: str | None, json: bool, verbose: int) -> None:
    """Show why a job has its workers: each change, and what other sizes would give."""
    import json as json_module

    from shoal.cli.render.training import reason_line, size_table

    entries = _call(
        cluster, lambda jobs: jobs.explain(job), json=json, verbose=verbose, result_only=True
    )
    if json:
        click.echo(json_module.dumps(entries))
        return
    for entry in entries:
        if line := reason_line(entry):
            click.echo(line)
    for line in size_table(entries):
        click.echo(line)


def _call(
    cluster: str | None,
    act: Callable[[TrainingJobs], Awaitable[Any]],
    *,
    json: bool,
    verbose: int,
    result_only: bool = False,
) -> Any:
    async def operation(ctx: Context) -> Any:
        from shoal.ops.train import TrainingJobs

        return await act(TrainingJobs(ctx, await _resolve(ctx, cluster, or_default=False)))

    return _run_with_view(operation, json=json, verbose=verbose, result_only=result_only)


def _run_with_view(
    operation: Callable[[Context], Awaitable[Any]],
    *,
    json: bool,
    verbose: int,
    result_only: bool = False,
) -> Any:
    async def with_view(ctx: Context) -> Any:
        if json:
            return await operation(ctx)
        from shoal.cli.render.training import TrainingView

        view = TrainingView(ctx.emit)
        try:
            return await operation(replace(ctx, emit=view.event))
        finally:
            view.close()

    return run(with_view, json=json, verbose=verbose, result_only=result_only, resumable=False)


async def _resolve(ctx: Context, cluster: str | None, *, or_default: bool) -> Any:
    from shoal.ops import cluster_lookup
    from shoal.ops.train_hosts import is_address

    if is_address(cluster):
        return cluster
    ref = cluster_lookup.ClusterRef(cluster)
    if or_default:
        return await cluster_lookup.resolve_or_default(ctx, ref)
    return await cluster_lookup.resolve(ctx, ref)


def _text(job: dict[str, Any], key: str) -> str:
    return "" if job.get(key) is None else str(job[key])
