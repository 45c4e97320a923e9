"""The command line. Each command is a module that is imported only when it is called."""

from __future__ import annotations

import os
from importlib import import_module

import click

# Name, module and help line of each command. The help lines are here so that `shoal --help` need
# not import the commands.
_COMMANDS = {
    "up": ("up", "Create or update a cluster."),
    "plan": ("plan", "Show what `up` would do, and the resulting price."),
    "doctor": ("doctor", "Run the preflight checks of a cluster file."),
    "bake": ("bake", "Make images from which a cluster's nodes start without setup."),
    "down": ("down", "Terminate a cluster."),
    "status": ("status", "Show a cluster's nodes and resource usage."),
    "exec": ("exec", "Run a command on a cluster's head."),
    "submit": ("submit", "Copy a script to a cluster's head and run it there."),
    "job": ("job", "Run a program as a Ray job, with your code and its packages."),
    "sweep": ("sweep", "Run a script many times with different parameters."),
    "train": ("train", "Run a training script with workers that come and go."),
    "attach": ("attach", "Open a shell on a cluster's head."),
    "env": ("env", "Print the environment with which programs connect to a cluster."),
    "dashboard": ("dashboard", "Forward a cluster's Ray dashboard to this machine."),
    "ui": ("ui", "Show all clusters on a page in the browser."),
    "monitor": ("monitor", "The same as `status --watch`."),
    "rsync-up": ("rsync_up", "Copy files to a cluster."),
    "rsync-down": ("rsync_down", "Copy files from a cluster."),
    "drain": ("drain", "Let a node finish its work, then terminate it."),
    "stop": ("stop", "Stop Ray; on AWS also stop the instances."),
    "start": ("start", "Start a stopped cluster."),
    "get-head-ip": ("get_head_ip", "Print the head's IP address."),
    "get-worker-ips": ("get_worker_ips", "Print the workers' IP addresses."),
    "ssh-config": ("ssh_config", "Print or install SSH configuration for a cluster's nodes."),
    "shell": ("shell", "Open a Python prompt for a cluster of your own machines."),
    "logs": ("logs", "Show the logs of a node: setup, Ray and controller."),
    "why": ("why", "Explain the controller's decisions."),
    "cost": ("cost", "Show what a cluster has cost so far."),
    "ls": ("ls", "List clusters."),
    "gc": ("gc", "Delete what clusters left behind in your cloud accounts."),
    "config": ("config", "Show how Shoal reads a cluster file."),
    "simulate": ("simulate", "Simulate a cluster file on a workload trace."),
    "prices": ("prices", "Show the prices of instance types."),
    "completion": ("completion", "Print the shell completion script."),
    "iam-policy": ("iam_policy", "Print the IAM policy that Shoal needs."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        # Ray uses underscores in some command names (`rsync_up`): accept both.
        entry = _COMMANDS.get(name.replace("_", "-"))
        if entry is None:
            return None
        command = import_module(f"shoal.cli.{entry[0]}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in _COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            close = get_close_matches(args[0], _COMMANDS, n=1)
            if close and error.message.startswith("No such command"):
                raise click.UsageError(
                    f"No such command {args[0]!r}. Did you mean {close[0]!r}?", ctx
                ) from None
            raise


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from shoal import __version__

        click.echo(f"shoal {__version__}")
        ctx.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
    help="Show the version and exit.",
)  # fmt: skip
@click.pass_context
def main(ctx: click.Context) -> None:
    """Run Ray clusters from `ray up` YAML, in a cloud, on your own machines, or on this one.

    \b
    shoal up                  start a Ray cluster on this machine
    shoal up cluster.yaml     start the cluster that the file describes
    shoal exec 'python x.py'  run a program on it
    shoal down                terminate it
    """
    if os.environ.get("NO_COLOR"):  # https://no-color.org
        ctx.color = False
