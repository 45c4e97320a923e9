"""`shoal completion`"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the shell completion script for commands, clusters and files.

    \b
    bash  echo 'eval "$(shoal completion bash)"' >> ~/.bashrc
    zsh   echo 'eval "$(shoal completion zsh)"' >> ~/.zshrc
    fish  shoal completion fish > ~/.config/fish/completions/shoal.fish
    """
    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(ctx.find_root().command, {}, "shoal", "_SHOAL_COMPLETE").source())
