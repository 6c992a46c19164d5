"""The site of docs/ in a real browser, opened from the disk: layout, links, pictures, search."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest
from mkdocs.config.defaults import MkDocsConfig
from playwright.sync_api import Browser, Page, Request

from docs.site_hooks import use_project

ROOT = Path(__file__).parents[1]
PAGES = sorted(page.stem for page in (ROOT / "docs").glob("*.md"))
DESKTOP, PHONE = 1280, 390

TOO_WIDE = """
() => [...document.querySelectorAll('.md-content *, .md-header *, .md-footer *')]
    .filter(one => one.checkVisibility() && !one.closest('.md-typeset__scrollwrap, pre, .md-search, svg'))
    .filter(one => one.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
    .map(one => one.outerHTML.slice(0, 120))
"""
"""Elements that reach over the right edge; tables and code may scroll inside themselves."""

BROKEN_PICTURES = """
async () => {
  const pictures = [...document.querySelectorAll('.md-content img')];
  pictures.forEach(one => { one.loading = 'eager' });
  await Promise.all(pictures.map(one => one.decode().catch(() => null)));
  return pictures.filter(one => !one.naturalWidth || !one.alt).map(one => one.outerHTML);
}
"""

HEADINGS = """
() => [...document.querySelectorAll('.md-content :is(h1, h2, h3, h4, h5, h6)')].map(one => Number(one.tagName[1]))
"""

LINKS = "() => [...document.querySelectorAll('a[href]')].map(one => one.href)"
IDS = "() => [...document.querySelectorAll('[id]')].map(one => one.id)"


class Site:
    """The site on the disk, in a browser window that records requests and messages."""

    def __init__(self, directory: Path, page: Page) -> None:
        self.directory = directory
        self.page = page
        self.requests: list[str] = []
        self.messages: list[str] = []
        page.on("request", self._record)
        page.on("requestfailed", lambda request: self.messages.append(f"failed: {request.url}"))
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))

    def _record(self, request: Request) -> None:
        if not request.url.startswith(("data:", "about:")):
            self.requests.append(request.url)

    def open(self, name: str, *, width: int = DESKTOP) -> None:
        """Open a page in a window of this width."""
        self.requests.clear()
        self.messages.clear()
        self.page.emulate_media(color_scheme="light", reduced_motion="reduce")
        self.page.set_viewport_size({"width": width, "height": 800})
        self.page.goto(f"{self.directory.as_uri()}/{name}.html")

    def look(self, script: str) -> Any:
        """Return the result of a script in the page."""
        return self.page.evaluate(script)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning is an error, for example a page that is not in the navigation."""
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


@pytest.fixture(scope="module")
def site(directory: Path, browser: Browser) -> Iterator[Site]:
    with browser.new_context() as context:
        yield Site(directory, context.new_page())


@pytest.fixture(scope="module")
def anchors(site: Site) -> dict[Path, set[str]]:
    """The ids of each page."""
    ids = {}
    for page in sorted(site.directory.glob("*.html")):
        site.open(page.stem)
        ids[page] = {*site.look(IDS), ""}
    return ids


def test_each_page_is_in_the_site_and_no_program(directory: Path) -> None:
    assert set(PAGES) - {page.stem for page in directory.glob("*.html")} == set()
    assert list(directory.rglob("*.py")) == []


@pytest.mark.parametrize("name", PAGES)
def test_page_fits_the_screen_and_loads_from_the_disk(site: Site, name: str) -> None:
    site.open(name)
    for width in (DESKTOP, PHONE):
        site.page.set_viewport_size({"width": width, "height": 800})
        assert site.look("() => document.documentElement.scrollWidth") <= width
        assert site.look(TOO_WIDE) == []
    assert site.look(BROKEN_PICTURES) == []
    headings = site.look(HEADINGS)
    assert headings.count(1) == 1
    assert [(a, b) for a, b in zip(headings, headings[1:], strict=False) if b > a + 1] == []
    assert [url for url in site.requests if not url.startswith("file:")] == []
    assert site.messages == []


@pytest.mark.parametrize("name", PAGES)
def test_links_of_a_page_lead_somewhere(
    site: Site, anchors: dict[Path, set[str]], name: str
) -> None:
    site.open(name)
    for link in site.look(LINKS):
        if link.startswith("file:"):
            url, anchor = urldefrag(unquote(link.removeprefix("file://")))
            assert Path(url).is_file(), link
            assert anchor in anchors.get(Path(url), {""}), link


def test_colours_follow_the_scheme(site: Site) -> None:
    backgrounds = []
    for scheme in ("light", "dark"):
        site.open("index")
        site.page.emulate_media(color_scheme=scheme)
        backgrounds.append(site.look("() => getComputedStyle(document.body).backgroundColor"))
    assert backgrounds[0] == "rgb(255, 255, 255)"
    assert backgrounds[1] != backgrounds[0]


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_search_suggests_and_finds_pages_from_the_disk(site: Site, width: int) -> None:
    site.open("index", width=width)
    if width == PHONE:
        site.page.locator("label[for=__search]").first.click()
    site.page.locator("input.md-search__input").fill("savep")
    result = site.page.locator(".md-search-result__link").first
    result.wait_for()
    assert site.page.locator(".md-search__suggest").inner_text().startswith("savepoint")
    result.click()
    site.page.locator("mark", has_text="avep").first.wait_for()
    assert site.messages == []


def test_header_shows_the_version_and_links_need_a_known_address() -> None:
    config = MkDocsConfig()
    config.load_dict({"site_name": "Holdfast", "extra": {}})
    config.validate()
    use_project(config, {"version": "1.2.3", "description": "State"})
    assert (config.site_name, config.site_url, config.edit_uri) == ("Holdfast 1.2.3", None, None)
    urls = {"Repository": "https://example.org/holdfast", "Documentation": "https://example.org/"}
    use_project(config, {"version": "1.2.3", "description": "State", "urls": urls})
    assert config.site_url == urls["Documentation"]
    assert config.edit_uri == "https://example.org/holdfast/edit/main/docs/"
    assert config.repo_url is None
