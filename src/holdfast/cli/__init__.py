"""The `holdfast` command."""

from holdfast.cli._main import main

__all__ = ["main"]
