"""The page of `holdfast report`, in a real browser."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
from contracts.histories import HOSTILE, checkpoint_metadata, write_checkpoints
from playwright.sync_api import Browser, Page
from servers.readability import LOW_CONTRAST, TOO_WIDE

from holdfast.cli.command_line import main
from holdfast.locations import complete_checkpoint

WIDTHS = (360, 768, 1280)


@pytest.fixture(scope="module")
def page_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page with all elements: every state, long tables, and hostile names."""
    root = tmp_path_factory.mktemp("report")
    directory = root / f"{'a-directory-with-a-long-name-' * 4}<b>"
    directory.mkdir()
    storage = write_checkpoints(directory, [*range(1, 60), *range(70, 121)], parallelism=100)
    write_checkpoints(directory, [1, 2], job_id="j" * 128, uids=[*HOSTILE, "x" * 300])
    write_checkpoints(directory, [1, 2, 3], job_id="ended", newest_ms=1_700_000_000_000)
    write_checkpoints(directory, [1, 2], job_id="damaged")
    (directory / "damaged" / "chk-2" / "_metadata").write_bytes(b"no metadata")
    (directory / "damaged" / "chk-3").mkdir()
    (directory / "new" / "shared").mkdir(parents=True)
    location = storage.create_checkpoint_storage("job").initialize_location_for_savepoint(
        120, f"file://{directory}"
    )
    metadata = checkpoint_metadata(
        120, job_id="job", uids=["operator"], parallelism=2, created_ms=1_700_000_000_000
    )
    complete_checkpoint(location, metadata)
    file = root / "report.html"
    assert main(["report", f"file://{directory}", "-o", str(file)]) == 0
    return file.as_uri()


@contextmanager
def open_page(
    browser: Browser,
    uri: str,
    *,
    width: int = 1280,
    scheme: Literal["light", "dark"] = "light",
    scripts: bool = True,
) -> Iterator[Page]:
    """Open the page in a browser window."""
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, java_script_enabled=scripts
    )
    page = context.new_page()
    try:
        page.goto(uri)
        yield page
    finally:
        context.close()


def test_page_requests_nothing_and_runs_no_script(browser: Browser, page_uri: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    requests: list[str] = []
    messages: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("dialog", lambda dialog: messages.append(dialog.message))
    page.goto(page_uri, wait_until="networkidle")
    assert [request for request in requests if not request.startswith("data:")] == [page_uri]
    assert messages == []
    assert page.title().startswith("Checkpoints in file://")
    assert page.locator("script, img, iframe").count() == 0
    assert page.locator("header bdi").first.inner_text().endswith("name-<b>")
    for name in HOSTILE:
        assert page.get_by_role("heading", name=name, exact=True).count() == 1
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_page_fits_the_screen_and_all_text_is_readable(
    browser: Browser, page_uri: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    with open_page(browser, page_uri, width=width, scheme=scheme) as page:
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(TOO_WIDE) == []
        looked, contrasts = page.evaluate(LOW_CONTRAST)
        assert looked > 1000
        assert contrasts == []


def test_colours_follow_the_scheme(browser: Browser, page_uri: str) -> None:
    backgrounds = []
    for scheme in ("light", "dark"):
        with open_page(browser, page_uri, scheme=scheme) as page:
            backgrounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert backgrounds == ["rgb(247, 248, 248)", "rgb(19, 23, 26)"]


def test_essentials_need_no_script(browser: Browser, page_uri: str) -> None:
    with open_page(browser, page_uri, width=360, scripts=False) as page:
        assert page.get_by_role("heading", level=1).inner_text() == "Checkpoints"
        for state in ("Healthy", "Quiet", "Damaged", "No checkpoint"):
            assert page.locator(".headline", has_text=state).first.is_visible()
        job = page.get_by_role("region", name="job", exact=True)
        assert job.get_by_role("img", name="Duration of 110 checkpoints").is_visible()
        assert job.get_by_role("img", name="State by subtask").is_visible()
        assert job.get_by_role("rowheader", name="#120 batch 119").is_visible()
        older = job.get_by_role("rowheader", name="#59 batch 58")
        assert not older.is_visible()
        job.get_by_text("102 older").click()
        assert older.is_visible()
        assert job.get_by_role("columnheader", name="Duration").count() >= 1
        # Narrow screens have the column's name in each cell.
        assert "Duration" in job.get_by_role("row").nth(1).evaluate(
            "row => getComputedStyle(row.cells[2], '::before').content"
        )


def test_print_shows_sections_folded_on_the_screen(browser: Browser, page_uri: str) -> None:
    with open_page(browser, page_uri, scheme="dark") as page:
        older = page.get_by_role("region", name="job", exact=True).get_by_text("#59 batch 58")
        assert not older.is_visible()
        page.emulate_media(media="print")
        assert older.is_visible()
        assert (
            page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        )
        assert page.evaluate(LOW_CONTRAST)[1] == []
