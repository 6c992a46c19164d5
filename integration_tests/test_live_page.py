"""The page of `holdfast serve`, in a real browser: a process serves it, and reads a directory that changes."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from contracts.histories import HOSTILE, write_checkpoints
from contracts.written_keyed_states import keyed_checkpoint
from playwright.sync_api import Browser, Page, expect
from prometheus_client import start_http_server
from servers.readability import LOW_CONTRAST, TOO_WIDE

from holdfast.spark.metrics import definitions
from holdfast.spark.metrics.prometheus import registry_of
from holdfast.spark.metrics.values import MetricValues, Sample

TOKEN = "the-token-of-the-live-page"


@dataclass(frozen=True)
class LivePage:
    """A page that a process serves, and the directory that it shows."""

    address: str
    directory: Path


@pytest.fixture(scope="module")
def live_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePage]:
    """A page with all elements: long tables, hostile names, damaged metadata, keyed state."""
    directory = tmp_path_factory.mktemp("live")
    write_checkpoints(directory, [*range(1, 20), *range(25, 30)], parallelism=30)
    write_checkpoints(directory, [1, 2], job_id="j" * 128, uids=[*HOSTILE, "x" * 300])
    write_checkpoints(directory, [1, 2], job_id="damaged")
    (directory / "damaged" / "chk-2" / "_metadata").write_bytes(b"no metadata")
    keyed = directory / "keyed-state"
    keyed_checkpoint(f"file://{keyed}")
    token_file = directory.parent / "token.txt"
    token_file.write_text(TOKEN)
    command = [sys.executable, "-m", "holdfast", "serve", f"file://{directory}", f"file://{keyed}"]
    command += ["--port", "0", "--interval", "1s", "--token-file", str(token_file)]
    values = MetricValues()
    values.record([Sample(definitions.SOURCE_LAG, ("job", "0"), 12345.0)])
    driver, _ = start_http_server(0, "127.0.0.1", registry_of(values))
    command += ["--driver", f"http://127.0.0.1:{driver.server_port}/metrics"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield LivePage(process.stdout.readline().strip(), directory)
        finally:
            process.terminate()
            process.wait(timeout=20)
            driver.shutdown()


@contextmanager
def open_page(
    browser: Browser,
    live_page: LivePage,
    view: str,
    *,
    width: int = 1280,
    scheme: Literal["light", "dark"] = "light",
) -> Iterator[Page]:
    """Sign in by a link and open a view; messages of the browser are errors."""
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("dialog", lambda dialog: messages.append(dialog.message))
    try:
        page.goto(f"{live_page.address}?token={TOKEN}{view}")
        expect(page.locator("main h2")).to_be_focused()
        assert TOKEN not in page.url
        yield page
        assert messages == []
    finally:
        context.close()


def test_job_shows_the_figures_of_its_driver(browser: Browser, live_page: LivePage) -> None:
    with open_page(browser, live_page, "#/job/job@1") as page:
        expect(page.get_by_role("heading", name="The driver, now")).to_be_visible()
        expect(page.locator("dl", has_text="Source lag, rows")).to_contain_text("12,345")
    with open_page(browser, live_page, "#/job/damaged") as page:
        expect(page.get_by_role("heading", name="The driver, now")).to_have_count(0)


def test_new_checkpoint_appears_without_a_reload(browser: Browser, live_page: LivePage) -> None:
    with open_page(browser, live_page, "#/job/j" + "j" * 127) as page:
        page.evaluate("window.isSamePage = true")
        page.get_by_role("link", name="#2", exact=True).focus()
        write_checkpoints(live_page.directory, [3], job_id="j" * 128, uids=["operator"])
        expect(page.get_by_role("link", name="#3", exact=True)).to_be_visible()
        expect(page.get_by_role("status")).to_contain_text("Checkpoint 3 of job")
        expect(page.get_by_role("link", name="#2", exact=True)).to_be_focused()
        assert page.evaluate("window.isSamePage")


@pytest.mark.parametrize(
    ("width", "scheme"), [(360, "light"), (360, "dark"), (1280, "light"), (1280, "dark")]
)
def test_views_fit_the_screen_and_all_text_is_readable(
    browser: Browser, live_page: LivePage, width: int, scheme: Literal["light", "dark"]
) -> None:
    long = "j" * 128
    views = {
        "#/": "Jobs",
        "#/job/job@1": "job@1",
        "#/job/job@1/checkpoint/29/operator/operator": "Operator operator in checkpoint 29",
        "#/job/damaged": "damaged",
        f"#/job/{long}/checkpoint/2": f"Checkpoint 2 of {long}",
        "#/job/job@2/state/op/pages/keyed%20map": "State pages of op",
    }
    with open_page(browser, live_page, "", width=width, scheme=scheme) as page:
        for view, heading in views.items():
            page.goto(f"{live_page.address}{view}")
            expect(page.get_by_role("heading", level=2)).to_have_text(heading)
            page.evaluate(
                "document.querySelectorAll('details').forEach(one => { one.open = true })"
            )
            assert page.evaluate("document.documentElement.scrollWidth") <= width, view
            assert page.evaluate(TOO_WIDE) == [], view
            looked, contrasts = page.evaluate(LOW_CONTRAST)
            assert looked > 20
            assert contrasts == [], view


def test_keyboard_reaches_a_state_and_looks_up_a_key(browser: Browser, live_page: LivePage) -> None:
    with open_page(browser, live_page, "") as page:
        page.keyboard.press("Shift+Tab")
        page.get_by_role("link", name="Skip to the content").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("main")).to_be_focused()
        page.get_by_role("link", name="job@2", exact=True).focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="job@2", level=2)).to_be_focused()
        page.get_by_role("link", name="totals", exact=True).focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="State totals of op")).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.get_by_label("user (string)")).to_be_focused()
        page.keyboard.type("bob")
        page.keyboard.press("Enter")
        expect(page.get_by_label("Rows of the key")).to_contain_text('"value": 2')
        expect(page.get_by_role("rowheader", name="user=ann")).to_be_visible()
        page.go_back()
        expect(page.get_by_role("heading", name="job@2", level=2)).to_be_focused()


def test_names_are_text_and_damage_is_shown(browser: Browser, live_page: LivePage) -> None:
    with open_page(browser, live_page, f"#/job/{'j' * 128}/checkpoint/2") as page:
        for name in HOSTILE:
            assert page.get_by_role("link", name=name, exact=True).count() == 1
        assert page.locator("main script, main img, main iframe").count() == 0
        page.get_by_role("link", name=HOSTILE[0], exact=True).click()
        expect(page.get_by_role("heading", name=f"Operator {HOSTILE[0]}")).to_be_focused()
        page.goto(f"{live_page.address}#/job/damaged/checkpoint/2")
        expect(page.get_by_text("not a holdfast metadata file").first).to_be_visible()


def test_sign_in_form_leads_to_the_page(browser: Browser, live_page: LivePage) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 800})
    page = context.new_page()
    page.goto(live_page.address)
    page.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("That is not the token.")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Jobs", level=2)).to_be_focused()
    expect(page.get_by_role("status")).to_have_text("Live")
    page.get_by_role("link", name="damaged").click()
    page.get_by_role("button", name="Find files").click()
    expect(page.get_by_text("A sweep would delete nothing now")).to_be_visible()
    context.close()
