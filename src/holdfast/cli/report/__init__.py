"""The page of `holdfast report`: its values, and the page made of them.

`data` says which values there are, `gathering` takes them from checkpoints, `page` draws them. Start with `data`.
"""

from collections.abc import Callable

from holdfast.cli.report.data import Report
from holdfast.cli.report.gathering import report_of

__all__ = ["page_maker", "report_of"]


def page_maker() -> Callable[[Report], str]:
    """The function that makes the page of a report, as HTML.

    Raises:
        ModuleNotFoundError: Jinja is not installed.
    """
    # Not at the top: the extra `report` brings Jinja, and other commands can do without.
    from holdfast.cli.report.page import page  # noqa: PLC0415

    return page
