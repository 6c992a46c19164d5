"""The `holdfast` command."""

from holdfast.cli.command_line import main

__all__ = ["main"]
