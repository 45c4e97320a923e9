"""The command line. Each command is a module of its own and loads only when it is called."""

from __future__ import annotations

from importlib import import_module

import click

# The name a person types, the module that holds the command, and the line that help shows.
# Help must not have to import the commands, or it would be as slow as the slowest of them.
_COMMANDS = {
    "up": ("up", "Bring a cluster up, or to what its file says now."),
    "plan": ("plan", "Show what up would do, and what the cluster would cost."),
    "doctor": ("doctor", "Find what would keep a cluster from coming up."),
    "down": ("down", "Give a cluster's machines back."),
    "status": ("status", "Show a cluster's nodes and what they do."),
    "exec": ("exec", "Run a command on a cluster's head."),
    "submit": ("submit", "Copy a script to a cluster's head and run it there."),
    "attach": ("attach", "Open a shell on a cluster's head."),
    "dashboard": ("dashboard", "Show a cluster's dashboard here."),
    "monitor": ("monitor", "Show a cluster's status again and again."),
    "rsync-up": ("rsync_up", "Copy files to a cluster."),
    "rsync-down": ("rsync_down", "Copy files from a cluster."),
    "stop": ("stop", "End Ray on a cluster whose machines stay."),
    "start": ("start", "Start Ray again on a cluster that was stopped."),
    "get-head-ip": ("get_head_ip", "Print the head's address."),
    "get-worker-ips": ("get_worker_ips", "Print the workers' addresses."),
    "ssh-config": ("ssh_config", "Let plain ssh reach a cluster's machines by name."),
    "shell": ("shell", "Open a Python prompt with a cluster of your own machines."),
    "why": ("why", "Tell why the cluster is as it is."),
    "cost": ("cost", "Show what a cluster has cost so far."),
    "ls": ("ls", "Show every cluster known here."),
    "gc": ("gc", "Remove what clusters left behind in your AWS account."),
    "config": ("config", "Show a cluster file as Shoal understands it."),
    "simulate": ("simulate", "Try a cluster file on a trace of work, on paper."),
    "prices": ("prices", "Show what machines cost."),
    "completion": ("completion", "Print the script that completes commands in a shell."),
    "iam-policy": ("iam_policy", "Print what AWS must allow you, as a policy."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        # Ray's commands have underscores in places (`rsync_up`); both forms are understood.
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
def main() -> None:
    """Ray clusters from the YAML that `ray up` reads: on this machine, or on yours.

    \b
    shoal up                  a real Ray cluster on this machine
    shoal up cluster.yaml     the cluster that the file describes
    shoal exec 'python x.py'  a program on it
    shoal down                everything given back
    """
