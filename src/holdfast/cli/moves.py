"""Shared by commands that move state to a savepoint: they print what is lost, write, and print the pointer."""

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.cli.output import print_json, say, told_when_interrupted


def say_all(heading: str, lines: Iterable[str]) -> None:
    """Say a heading, and each line below it."""
    say(heading)
    for line in lines:
        say(f"  {line}")


def write_and_print(
    options: Namespace,
    write: Callable[[], str],
    told: Mapping[str, Any],
    *,
    if_interrupted: str,
    next_step: str,
) -> None:
    """Write what was planned, unless this is a dry run, and print the pointer to it.

    Args:
        options: The command's options, with `dry_run` and `json`.
        write: Writes; gives the pointer.
        told: Further values for the output as JSON.
        if_interrupted: Tells users what to do with files that an interrupt leaves.
        next_step: Tells users what to do with the savepoint.
    """
    pointer = None
    if options.dry_run:
        say("nothing was written")
    else:
        with told_when_interrupted(if_interrupted):
            pointer = write()
        say(next_step)
    if options.json:
        print_json({"pointer": pointer, **told})
    elif pointer is not None:
        print(pointer)
