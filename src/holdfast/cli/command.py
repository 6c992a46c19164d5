"""Options that the commands share, and how a command is added."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import shtab

if TYPE_CHECKING:  # argparse has no public name for it
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001


def add_command(
    commands: "Commands",
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,  # as argparse calls it
    description: str,
    examples: str,
) -> argparse.ArgumentParser:
    """Add a command, and return it, so that its options can be added.

    Args:
        commands: The command line's list of commands.
        name: The word that calls the command.
        run: Does the work, and returns the exit status.
        help: One line, in the help of all commands.
        description: The text of the command's own help.
        examples: Whole command lines, one a line, shown behind the options.
    """
    lines = "\n".join(f"  {line.strip()}" for line in examples.strip().splitlines())
    command = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def add_json(command: argparse.ArgumentParser, what: str) -> None:
    """Add `--json`.

    Args:
        command: The command.
        what: What the command prints with this option, as in `one object a checkpoint`.
    """
    command.add_argument("--json", action="store_true", help=f"print JSON, {what}")


def complete_files(action: argparse.Action) -> None:
    """Let shells complete the value of an option by the names of files."""
    action.complete = shtab.FILE  # type: ignore[attr-defined]  # as shtab has it
