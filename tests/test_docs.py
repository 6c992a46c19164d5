"""The documentation is true: its tables are made from code, its links lead somewhere. `spark/test_code_of_pages.py` runs its code."""

import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from pages.blocks import LANGUAGES, PAGES, Block, blocks_of, shell_blocks_of
from pymdownx.slugs import slugify

from docs.generate import commands_page, metrics_page, settings_page, support_matrix
from docs.pictures import PICTURES, Picture
from holdfast.spark.settings import settings_table

ROOT = Path(__file__).parents[1]
_SLUG = slugify(case="lower")  # as in mkdocs.yml

_EXCERPT = re.compile(r"it is part of `(?P<file>[\w/.]+)`$")
EXCERPTS = [block for page in PAGES for block in blocks_of(page) if _EXCERPT.match(block.not_run)]
"""Blocks that quote a file of the repository."""

NO_SETTINGS = {"spark.holdfast.state.checkpoints.dir"}
"""Settings on a page that are refused."""


@pytest.mark.parametrize(
    "block",
    [block for page in PAGES for block in shell_blocks_of(page) if block.not_run],
    ids=str,
)
def test_a_shell_block_is_not_run(block: Block) -> None:
    bash = ["bash", "-n", "-c", block.commands]
    assert subprocess.run(bash, capture_output=True, check=False).returncode == 0
    pytest.skip(block.not_run)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_block_has_a_language_and_all_python_is_run(page: Path) -> None:
    blocks = blocks_of(page)
    assert [str(block) for block in blocks if block.language not in LANGUAGES] == []
    unexplained = [block for block in blocks if block.not_run and not _EXCERPT.match(block.not_run)]
    assert [str(block) for block in unexplained if block.language == "python"] == []
    assert page.read_text().count("```") == 2 * len(blocks)


@pytest.mark.parametrize("block", EXCERPTS, ids=str)
def test_an_excerpt_is_in_its_file(block: Block) -> None:
    excerpt = _EXCERPT.match(block.not_run)
    assert excerpt
    text = (ROOT / excerpt["file"]).read_text()
    assert "".join(block.text.split()) in "".join(text.split())  # it may break lines elsewhere


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_markup_unknown_to_github(page: Path) -> None:
    """Notes are `> [!NOTE]`; admonitions and tabs of the site would be raw text on GitHub."""
    assert re.findall(r"(?m)^ *(?:!!!|\?\?\?|===) .*", page.read_text()) == []


def test_extras_on_pages_can_be_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {
        extra
        for page in PAGES
        for extras in re.findall(r"holdfast\[([\w,]+)\]", page.read_text())
        for extra in extras.split(",")
    }
    assert named - set(project["optional-dependencies"]) == set()


def test_settings_on_pages_exist() -> None:
    settings = {setting.name for setting in settings_table()}
    named = {
        (page.name, key)
        for page in PAGES
        for key in re.findall(r"spark\.holdfast\.[a-z0-9-]+(?:\.[a-z0-9-]+)+", page.read_text())
    }
    assert [setting for setting in sorted(named) if setting[1] not in settings | NO_SETTINGS] == []


@pytest.mark.parametrize(
    ("page", "made"),
    [("cli.md", commands_page), ("metrics.md", metrics_page), ("settings.md", settings_page)],
)
def test_a_generated_page_is_up_to_date(page: str, made: Callable[[], str]) -> None:
    assert (ROOT / "docs" / page).read_text() == made(), "run `make docs`"


def test_the_support_matrix_is_made_from_recorded_runs() -> None:
    page = (ROOT / "docs" / "support-matrix.md").read_text()
    assert support_matrix(page) == page, "run `make docs`"


@pytest.mark.parametrize("draw", PICTURES)
def test_a_picture_is_made_from_the_code(draw: Callable[[], Picture]) -> None:
    assert (ROOT / "docs" / "images" / f"{draw.__name__}.svg").read_text() == draw().svg()


def _title(page: Path) -> str:
    return page.read_text().partition("\n")[0].removeprefix("# ").replace("`", "")


def test_navigation_has_the_titles_of_all_pages() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    entries = re.findall(r'^ +- "?([^"\n]+?)"?: (\S+\.md)$', navigation, re.MULTILINE)
    titles = {page.name: _title(page) for page in ROOT.glob("docs/*.md")}
    assert {name: title for title, name in entries} == titles | {"index.md": "Home"}


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_a_table_of_pages_names_each_by_its_title(page: str) -> None:
    rows = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("|")]
    links = re.findall(r"\[([^\]]+)\]\((?:docs/)?([a-z0-9-]+\.md)\)", "\n".join(rows))
    named = [link for link in links if not link[1].startswith("api-")]
    assert len(named) > 10
    assert [link for link in named if link[0] != _title(ROOT / "docs" / link[1])] == []


def _anchors(page: Path) -> set[str]:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {_SLUG(heading.replace("`", ""), "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text())
    targets = [(page.parent / name if name else page, anchor) for name, anchor in links]
    assert [target for target, _ in targets if not target.exists()] == []
    headings = [(target, anchor) for target, anchor in targets if anchor and target in PAGES]
    assert [link for link in headings if link[1] not in _anchors(link[0])] == []
