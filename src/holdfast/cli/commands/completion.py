"""`holdfast completion`: scripts for completion in shells."""

import argparse
from typing import TYPE_CHECKING

import shtab

from holdfast.cli.options import add_command

if TYPE_CHECKING:
    from holdfast.cli.options import Commands


def add_to(commands: "Commands") -> None:
    """Add the command."""
    command = add_command(
        commands,
        "completion",
        completion_command,
        help="print a script that completes the command in a shell",
        description=(
            "Print a script for a shell that completes commands and options.\n\n"
            "bash: put the first line below into ~/.bashrc. zsh: run the second, with ~/.zfunc in\n"
            "$fpath before compinit."
        ),
        examples="""
            eval "$(holdfast completion bash)"
            holdfast completion zsh >~/.zfunc/_holdfast
        """,
    )
    command.add_argument("shell", choices=("bash", "zsh"), help="the shell")


def completion_command(options: argparse.Namespace) -> int:
    """Print the script."""
    print(shtab.complete(options.parser, options.shell))
    return 0
