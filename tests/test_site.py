"""The site of docs/: built without a warning, and all of it comes from one place."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

# It builds the site, which takes as long as thousands of other tests; `make site` does the same.
pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).parents[1]

_FETCHED = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "image": ("href", "xlink:href"),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}
"""By element, the attributes that a browser fetches without being asked."""

_ELSEWHERE = re.compile(r"(https?:)?//")
_IN_STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"';]*")


class _Fetched(HTMLParser):
    """Collects what a page fetches from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.elsewhere: list[str] = []
        self.classes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.classes.update(values.get("class", "").split())
        for name in _FETCHED.get(tag, ()):
            if _ELSEWHERE.match(values.get(name, "").strip()):
                self.elsewhere.append(values[name])
        self.elsewhere += _IN_STYLES.findall(values.get("style", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site; warnings are errors, as links that lead nowhere and pages that nothing leads to."""
    directory = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return directory


def test_each_page_is_in_the_site_and_no_program(site: Path) -> None:
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert pages - {page.stem for page in site.glob("*.html")} == set()
    assert list(site.rglob("*.py")) == []


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = _Fetched()
        fetched.feed(page.read_text())
        assert fetched.elsewhere == [], page.name
        assert fetched.classes & {"mermaid", "md-source"} == set(), "their scripts are elsewhere"
    for style in [*site.rglob("*.css"), *site.rglob("*.svg")]:
        assert _IN_STYLES.findall(style.read_text()) == [], style.name
