"""`holdfast report`: a page to look at."""

from holdfast.cli._report._command import add_to

__all__ = ["add_to"]
