"""`--env`: environment variables for programs on a cluster."""

from __future__ import annotations

import os

import click


def _env_vars(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    variables = {}
    for value in values:
        name, has_value, text = value.partition("=")
        if not name or (not has_value and name not in os.environ):
            raise click.BadParameter(f"{value!r} is not NAME=VALUE or the name of a variable.")
        variables[name] = text if has_value else os.environ[name]
    return variables


env_option = click.option(
    "-e", "--env", "env_vars", multiple=True, metavar="NAME[=VALUE]", callback=_env_vars,
    help="Set an environment variable, to its value here by default. Can be repeated.",
)  # fmt: skip
