"""The errors of a host whose login shell or dotfiles keep a command from running."""

from __future__ import annotations

from shoal.core.errors import SetupError
from shoal.remote.exec_protocol import REPLACED_SHELL
from shoal.remote.ssh_session import NotStarted
from shoal.remote.ssh_target import SshTarget

_DOTFILE_FIX = "limit that line in the dotfile to terminals: [ -t 1 ] && COMMAND"


def profile_error(node: str, target: SshTarget, line: str) -> SetupError:
    """The error of dotfiles that end or replace the shell. `line` is the last one that runs, if it
    is known."""
    return SetupError(
        f"a dotfile of {target} ends or replaces the shell before the command runs",
        why=f"the last line that runs is {line}" if line else "see ~/.profile and ~/.bashrc",
        fix=_DOTFILE_FIX,
        node=node,
    )


def no_shell_error(node: str, target: SshTarget, outcome: NotStarted) -> SetupError:
    """The error of a login shell in which the command did not start."""
    if outcome.code == 127 and (not outcome.output or "bash" in " ".join(outcome.output)):
        return SetupError(
            f"{target} has no bash",
            why="the commands of a cluster file are bash commands",
            fix="install bash there",
            node=node,
            output=outcome.output,
        )
    is_terminal_error = any("not a terminal" in line for line in outcome.output)
    is_other_shell = outcome.code in (REPLACED_SHELL, 127)
    if is_other_shell or is_terminal_error or not outcome.output:
        return SetupError(
            f"a dotfile of {target} ends or replaces every shell, also one that runs a command",
            why=outcome.output[-1]
            if outcome.output
            else f"its login shell ended with exit code {outcome.code} before it ran a command",
            fix=_DOTFILE_FIX,
            node=node,
            output=outcome.output,
        )
    return SetupError(
        f"{target} does not run commands",
        why=outcome.output[-1],
        fix="check `auth.ssh_user`: many images reject root and print the user name to use",
        node=node,
        output=outcome.output,
    )
