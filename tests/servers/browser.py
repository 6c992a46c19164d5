"""The Chromium of the machine; nothing is downloaded."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_WAY_OUT = (
    "no Chromium: install it, as with `apt-get install chromium`, or name its program in CHROMIUM"
)


def chromium() -> str | None:
    """Return the path of the program in `CHROMIUM` or on the path, or None."""
    if named := os.environ.get("CHROMIUM"):
        return shutil.which(named)
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A browser without a window."""
    program = chromium()
    if program is None:
        pytest.skip(_WAY_OUT)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        yield browser
        browser.close()
