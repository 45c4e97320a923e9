"""`shoal job`"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.cluster_options import cluster_argument, cluster_ref_options, complete_cluster
from shoal.cli.env_option import env_option
from shoal.cli.exec_options import code_option, requirements_option, start_option, stop_option
from shoal.cli.run import output_options, run
from shoal.cli.trailing_arguments import TrailingArgumentsCommand, trailing_arguments
from shoal.cli.up import autostop_option

if TYPE_CHECKING:
    from shoal.ops.cluster_lookup import ClusterRef
    from shoal.ops.context import Context


@click.group("job", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Run programs as Ray jobs, which go on when this machine disconnects.

    \b
    shoal job submit cluster.yaml --code . -- python train.py --epochs 3
    shoal job list
    shoal job logs -f JOB
    shoal job stop JOB
    shoal job code JOB DIR    restore the code that a job ran
    """


@command.command("submit", cls=TrailingArgumentsCommand)
@click.argument("cluster", required=False, shell_complete=complete_cluster)
@code_option
@requirements_option
@env_option
@click.option(
    "--id", "--submission-id", "job_id", metavar="ID", default="", help="The id of the job."
)
@click.option(
    "--cpus", "--entrypoint-num-cpus", type=click.FloatRange(min=0), metavar="N",
    help="CPUs of the command itself. With --cpus or --gpus, it can run on any node.",
)  # fmt: skip
@click.option(
    "--gpus", "--entrypoint-num-gpus", type=click.FloatRange(min=0), metavar="N",
    help="GPUs of the command itself.",
)  # fmt: skip
@click.option(
    "--follow/--detach", default=True, help="Show its output until it ends (default), or return."
)
@stop_option
@start_option
@autostop_option
@cluster_ref_options
@output_options
@click.pass_context
def submit_command(
    click_ctx: click.Context,
    ref: ClusterRef,
    code: Path | None,
    requirements: Path | None,
    env_vars: dict[str, str],
    job_id: str,
    cpus: float | None,
    gpus: float | None,
    follow: bool,
    start: bool,
    stop: bool,
    autostop: float | None,
    json: bool,
    verbose: int,
) -> None:  # fmt: skip
    """Run a command as a Ray job, and exit with its exit code.

    The command follows `--`. It runs on the head, in a copy of the code, which all workers have
    too. CLUSTER is a YAML file or the name of a cluster. Default: the only cluster that is up.
    Ctrl-C does not end the job.

    \b
    shoal job submit cluster.yaml --code . -- python train.py --epochs 3
    shoal job submit --code . --requirements requirements.txt --detach -- python train.py
    """
    from shoal.ops import cluster_lookup
    from shoal.ops.job_run import JobOptions, run_job
    from shoal.remote.runner import quote

    words = trailing_arguments(click_ctx)
    if not words:
        raise click.UsageError("No command. Put it after --: shoal job submit -- python train.py")
    if autostop is not None and not start:
        raise click.UsageError("--autostop requires --start.")
    resources = {"CPU": cpus, "GPU": gpus}
    options = JobOptions(
        # One word is a shell command, as in `ray job submit -- 'make && ./run'`.
        entrypoint=words[0] if len(words) == 1 else quote(words),
        code=code,
        requirements=requirements,
        env_vars=env_vars,
        job_id=job_id,
        resources={name: amount for name, amount in resources.items() if amount is not None},
        start=start,
        stop=stop,
        detach=not follow,
        applies_flags=autostop is not None,
    )
    ref = replace(ref, overrides=replace(ref.overrides, autostop=autostop))

    async def operation(ctx: Context) -> int:
        locate = cluster_lookup.locate_or_default if start else cluster_lookup.locate
        located = await locate(ctx, ref)
        with _writer(ctx, json=json) as write:
            return await run_job(ctx, located, options, write)

    sys.exit(run(operation, json=json, verbose=verbose, resumable=False))


@command.command("list")
@cluster_argument
@cluster_ref_options
@output_options
def list_command(ref: ClusterRef, json: bool, verbose: int) -> None:
    """List the jobs of a cluster, the newest last."""
    import json as json_module
    from dataclasses import asdict

    from shoal.cli.formatting import columns, duration, terminal_width
    from shoal.ops import jobs

    listed = _call(ref, jobs.list_jobs, json=json, verbose=verbose, result_only=True)
    if json:
        click.echo(json_module.dumps([asdict(job) for job in listed]))
        return
    import time

    rows = []
    for job in listed:
        began = job.started or time.time()
        took = duration((job.ended or time.time()) - began)
        code = "" if job.exit_code is None else str(job.exit_code)
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began))
        rows.append([job.id, job.status.lower(), code, at, took, job.entrypoint])
    header = ["JOB", "STATUS", "EXIT CODE", "STARTED", "TIME", "COMMAND"]
    for line in columns(header, rows, terminal_width()):
        click.echo(line)


_job_argument = click.argument(
    "arguments", nargs=-1, required=True, metavar="[CLUSTER] JOB", shell_complete=complete_cluster
)


@command.command("logs")
@_job_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@cluster_ref_options
@output_options
def logs_command(
    arguments: tuple[str, ...], follow: bool, ref: ClusterRef, json: bool, verbose: int
) -> None:
    """Show what a job printed. With -f, exit with its exit code when it ends."""
    from shoal.ops import jobs
    from shoal.ops.job_run import exit_code

    ref, (id,) = _split(arguments, ref, "JOB")

    async def logs(ctx: Context, spec: Any) -> int:
        with _writer(ctx, json=json) as write:
            if follow:
                return exit_code(await jobs.follow(ctx, spec, id, write))
            await jobs.logs(ctx, spec, id, write)
            return 0

    sys.exit(_call(ref, logs, json=json, verbose=verbose))


@command.command("stop")
@_job_argument
@cluster_ref_options
@output_options
def stop_command(arguments: tuple[str, ...], ref: ClusterRef, json: bool, verbose: int) -> None:
    """Stop a job, and return when it has ended."""
    from shoal.ops import jobs

    ref, (id,) = _split(arguments, ref, "JOB")
    job = _call(ref, lambda ctx, spec: jobs.stop(ctx, spec, id), json=json, verbose=verbose)
    if not json:
        click.echo(f"job {job.id}: {job.status.lower()}", err=True)


@command.command("code")
@click.argument(
    "arguments", nargs=-1, required=True, metavar="[CLUSTER] JOB DIR",
    shell_complete=complete_cluster,
)  # fmt: skip
@cluster_ref_options
@output_options
def code_command(arguments: tuple[str, ...], ref: ClusterRef, json: bool, verbose: int) -> None:
    """Restore the code that a job ran to a new directory, and show where it came from."""
    import json as json_module

    from shoal.ops import job_code

    ref, (id, directory) = _split(arguments, ref, "JOB", "DIR")
    record = _call(
        ref,
        lambda ctx, spec: job_code.restore(ctx, spec, id, Path(directory)),
        json=json,
        verbose=verbose,
        result_only=True,
    )
    if json:
        click.echo(json_module.dumps(record))
        return
    for line in job_code.description(record):
        click.echo(line)


def _split(
    arguments: tuple[str, ...], ref: ClusterRef, *names: str
) -> tuple[ClusterRef, tuple[str, ...]]:
    """Split `[CLUSTER] NAMES...`."""
    extra = len(arguments) - len(names)
    if extra not in (0, 1) or (extra and ref.source is not None):
        raise click.UsageError(f"Expected [CLUSTER] {' '.join(names)}.")
    if extra:
        ref = replace(ref, source=arguments[0])
    return ref, arguments[extra:]


def _call(
    ref: ClusterRef,
    act: Callable[[Context, Any], Awaitable[Any]],
    *,
    json: bool,
    verbose: int,
    result_only: bool = False,
) -> Any:
    async def operation(ctx: Context) -> Any:
        from shoal.ops import cluster_lookup

        return await act(ctx, await cluster_lookup.resolve(ctx, ref))

    return run(operation, json=json, verbose=verbose, result_only=result_only, resumable=False)


@contextlib.contextmanager
def _writer(ctx: Context, *, json: bool) -> Iterator[Callable[[bytes], None]]:
    """Where the output of a job goes: standard output, unchanged; with `json`, events."""
    if not json:

        def write(chunk: bytes) -> None:
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()

        yield write
        return
    from shoal.core.events import Output
    from shoal.remote.command_output import CommandOutput

    lines = CommandOutput(lambda line, stream: ctx.emit(Output("driver", line)))
    try:
        yield lambda chunk: lines.feed(chunk, "stdout")
    finally:
        lines.finish("stdout")
