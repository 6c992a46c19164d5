"""The commands, a module each with `add_to(commands)`; `COMMANDS` has their order.

A new command is a module here and an entry in `COMMANDS`.
"""

from holdfast.cli.commands import (
    cat,
    clean,
    completion,
    copy,
    diff,
    flink,
    importing,
    listing,
    report,
    restore,
    rollback,
    savepoint,
    settings,
    show,
    verify,
)

COMMANDS = (
    listing,
    show,
    cat,
    verify,
    diff,
    report,
    clean,
    copy,
    savepoint,
    restore,
    rollback,
    importing,
    flink,
    settings,
    completion,
)
"""In the order of the help."""

__all__ = ["COMMANDS"]
