"""The page of `holdfast report`: `gathering` has its values, `charts` and `page` draw them."""

from collections.abc import Callable

from holdfast.cli.report.gathering import Report, gather_report

__all__ = ["gather_report", "load_renderer"]


def load_renderer() -> Callable[[Report], str]:
    """Return the function that renders a report as HTML.

    Raises:
        ModuleNotFoundError: Jinja is not installed.
    """
    from holdfast.cli.report.page import render_page  # noqa: PLC0415  # Jinja is an extra

    return render_page
