"""The site of docs/ in a real browser, opened from the disk: layout, links, pictures, search."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urldefrag

import pytest
from mkdocs.config.defaults import MkDocsConfig
from playwright.sync_api import Browser, Page, expect

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

TEXT_OUTSIDE_ITS_BOX = """
() => [...document.querySelectorAll('text')].filter(text => {
  const inside = text.getBBox();
  const box = (text.closest('g') || document).querySelector('rect').getBBox();
  return inside.x < box.x + 4 || inside.x + inside.width > box.x + box.width - 4
    || inside.y < box.y || inside.y + inside.height > box.y + box.height;
}).map(one => one.textContent)
"""

HEADINGS = """
() => [...document.querySelectorAll('.md-content :is(h1, h2, h3, h4, h5, h6)')].map(one => Number(one.tagName[1]))
"""

LINKS = "() => [...document.querySelectorAll('a[href]')].map(one => one.href)"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
IDS = "() => [...document.querySelectorAll('[id]')].map(one => one.id)"


@dataclass(frozen=True, slots=True)
class View:
    """One page in a browser, at both widths."""

    widths: dict[int, int]
    too_wide: list[str]
    broken_pictures: list[str]
    headings: list[int]
    links: list[str]
    anchors: set[str]
    requests: list[str]
    messages: list[str]


@contextmanager
def open_page(
    browser: Browser, *, width: int = DESKTOP, scheme: Literal["light", "dark"] = "light"
) -> Iterator[tuple[Page, list[str], list[str]]]:
    """Open an empty page; its requests to other places than the disk, and its messages, are recorded."""
    requests: list[str] = []
    messages: list[str] = []
    with browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce"
    ) as context:
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("requestfailed", lambda request: messages.append(f"failed: {request.url}"))
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        yield page, requests, messages


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
def views(directory: Path, browser: Browser) -> dict[str, View]:
    """All pages, each opened once."""
    views = {}
    with open_page(browser) as (page, requests, messages):
        for name in PAGES:
            requests.clear()
            messages.clear()
            page.goto(f"{directory.as_uri()}/{name}.html")
            widths = {}
            too_wide = []
            for width in (DESKTOP, PHONE):
                page.set_viewport_size({"width": width, "height": 800})
                widths[width] = page.evaluate("document.documentElement.scrollWidth")
                too_wide += page.evaluate(TOO_WIDE)
            views[name] = View(
                widths,
                too_wide,
                page.evaluate(BROKEN_PICTURES),
                page.evaluate(HEADINGS),
                page.evaluate(LINKS),
                {*page.evaluate(IDS), ""},
                [url for url in requests if not url.startswith(("file:", "data:"))],
                list(messages),
            )
    return views


def test_each_page_is_in_the_site_and_no_program(directory: Path) -> None:
    assert set(PAGES) - {page.stem for page in directory.glob("*.html")} == set()
    assert list(directory.rglob("*.py")) == []


@pytest.mark.parametrize("name", PAGES)
def test_page_fits_the_screen_and_loads_from_the_disk(views: dict[str, View], name: str) -> None:
    view = views[name]
    assert view.widths == {DESKTOP: DESKTOP, PHONE: PHONE}
    assert view.too_wide == []
    assert view.broken_pictures == []
    assert view.headings.count(1) == 1
    assert [(a, b) for a, b in pairwise(view.headings) if b > a + 1] == []
    assert view.requests == []
    assert view.messages == []


@pytest.mark.parametrize("name", PAGES)
def test_links_of_a_page_lead_somewhere(views: dict[str, View], name: str) -> None:
    for link in views[name].links:
        if link.startswith("file:"):
            url, anchor = urldefrag(unquote(link.removeprefix("file://")))
            assert Path(url).is_file(), link
            assert anchor in views[Path(url).stem].anchors, link


def test_text_of_pictures_is_inside_its_box(browser: Browser) -> None:
    with open_page(browser) as (page, _, _):
        for picture in sorted((ROOT / "docs" / "images").glob("*.svg")):
            page.goto(picture.as_uri())
            assert page.evaluate(TEXT_OUTSIDE_ITS_BOX) == [], picture.name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_scheme_and_then_the_reader(
    directory: Path, browser: Browser, scheme: Literal["light", "dark"]
) -> None:
    with open_page(browser, scheme=scheme) as (page, _, _):
        page.goto(f"{directory.as_uri()}/index.html")
        picture = page.locator("img").first
        for dark in (scheme == "dark", scheme != "dark"):
            assert page.evaluate(BACKGROUND) == (
                "rgb(30, 33, 41)" if dark else "rgb(255, 255, 255)"
            )
            # The pictures ask for the scheme of the element that shows them.
            assert picture.evaluate("one => getComputedStyle(one).colorScheme") == (
                "dark" if dark else "light"
            )
            page.locator("label[for^=__palette]:visible").click()


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_search_suggests_and_finds_pages_from_the_disk(
    directory: Path, browser: Browser, width: int
) -> None:
    with open_page(browser, width=width) as (page, requests, messages):
        page.goto(f"{directory.as_uri()}/index.html")
        if width == PHONE:
            page.locator("label.md-header__button[for=__search]").click()
        page.locator("input.md-search__input").press_sequentially("savep")
        expect(page.locator(".md-search__suggest")).to_contain_text("savepoint")
        page.locator(".md-search-result__link").first.click()
        expect(page.locator("mark").first).to_contain_text(re.compile("savep", re.IGNORECASE))
        assert all(url.startswith(("file:", "data:", "about:")) for url in requests)
        assert messages == []


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
