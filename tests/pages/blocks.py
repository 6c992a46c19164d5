"""The blocks of code on a page."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

PAGES = sorted(
    page for pattern in ("*.md", "docs/*.md") for page in Path(__file__).parents[2].glob(pattern)
)

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_NOT_RUN = re.compile(r"<!-- not run: (?P<reason>(?:(?!-->).)+?) -->\s*\Z", re.DOTALL)
_SAVED = re.compile(r"\b[Ss]ave this as `(?P<name>[\w.-]+)`(?:(?!```).)*\Z", re.DOTALL)
_SECTION = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)
_COMMAND = "$ "

_RUN = {"console", "python", "sh"}
LANGUAGES = {"console", "diff", "java", "json", "properties", "python", "sh", "sql", "text", "yaml"}
"""`sh`, `console` and `python` are run; `text` is for everything without a language."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code.

    Attributes:
        page: The page.
        line: Line of the page on which it begins.
        language: Its language, as the page names it.
        text: The code.
        not_run: The reason why it is not run; empty if it is run.
        saved_as: The name of the file that the reader saves it as; empty without one.
        section: The heading of the page's section that it is in; empty before the first.
    """

    page: Path
    line: int
    language: str
    text: str
    not_run: str
    saved_as: str
    section: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def commands(self) -> str:
        """The shell's program: all of `sh`, and the lines of `console` that begin with `$`."""
        if self.language == "sh":
            return self.text
        lines = self.text.splitlines()
        return "\n".join(line.removeprefix(_COMMAND) for line in lines if line.startswith(_COMMAND))

    @property
    def shown(self) -> list[str]:
        """Lines of output in a `console` that are the same each time: without digits and `…`."""
        if self.language == "sh":
            return []
        lines = [line for line in self.text.splitlines() if not line.startswith(_COMMAND)]
        return [line for line in lines if line.strip() and not re.search(r"[\d…]", line)]


def blocks_of(page: Path) -> list[Block]:
    """Return all blocks of a page, in order."""
    text = page.read_text()
    blocks = []
    for fence in _FENCE.finditer(text):
        comment = _NOT_RUN.search(text, endpos=fence.start())
        saved = _SAVED.search(text, endpos=fence.start())
        sections = _SECTION.findall(_FENCE.sub("", text[: fence.start()]))
        blocks.append(
            Block(
                page=page,
                line=text.count("\n", 0, fence.start()) + 1,
                language=fence["language"],
                text=textwrap.dedent(fence["text"]),
                not_run=" ".join(comment["reason"].split()) if comment else "",
                saved_as=saved["name"] if saved else "",
                section=sections[-1] if sections else "",
            )
        )
    return blocks


def python_of(page: Path) -> str:
    """Return all Python of a page as one program, in order."""
    return "\n".join(block.text for block in blocks_of(page) if block.language == "python")


def shell_blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page for a shell, in order, including those that are not run."""
    return [block for block in blocks_of(page) if block.language in {"sh", "console"}]


def run_blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page that are run, for Python and for a shell."""
    return [block for block in blocks_of(page) if block.language in _RUN and not block.not_run]
