"""Commands with arguments for another program after `--`."""

from __future__ import annotations

import click

_KEY = "shoal.trailing_arguments"


class TrailingArgumentsCommand(click.Command):
    """Keeps what follows `--` apart from the command's own arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        trailing: list[str] = []
        if "--" in args:
            at = args.index("--")
            args, trailing = args[:at], args[at + 1 :]
        ctx.meta[_KEY] = tuple(trailing)
        return super().parse_args(ctx, args)


def trailing_arguments(ctx: click.Context) -> tuple[str, ...]:
    """The arguments after `--`; empty without it."""
    trailing: tuple[str, ...] = ctx.meta[_KEY]
    return trailing
