"""The blocks of code on a page."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_NOT_RUN = re.compile(r"<!-- not run: (?P<reason>(?:(?!-->).)+?) -->\s*\Z", re.DOTALL)
_COMMAND = "$ "

_RUN = {"console", "python", "sh"}
LANGUAGES = {"console", "java", "json", "properties", "python", "sh", "sql", "text", "yaml"}
"""`sh` and `console` are run, as `python` is; what is none of all these is `text`."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code.

    Attributes:
        page: The page.
        line: Line of the page on which it begins.
        language: What the page calls it.
        text: The code.
        not_run: Why nobody runs it; empty if it is run.
    """

    page: Path
    line: int
    language: str
    text: str
    not_run: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def commands(self) -> str:
        """The shell's program: all of `sh`, and of `console` what stands behind a `$`."""
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
    """All blocks of a page, in order."""
    text = page.read_text()
    blocks = []
    for fence in _FENCE.finditer(text):
        comment = _NOT_RUN.search(text, endpos=fence.start())
        blocks.append(
            Block(
                page=page,
                line=text.count("\n", 0, fence.start()) + 1,
                language=fence["language"],
                text=textwrap.dedent(fence["text"]),
                not_run=" ".join(comment["reason"].split()) if comment else "",
            )
        )
    return blocks


def python_of(page: Path) -> str:
    """All Python of a page, in order: later blocks go on where earlier ones ended."""
    return "\n".join(block.text for block in blocks_of(page) if block.language == "python")


def shell_blocks_of(page: Path) -> list[Block]:
    """What a page says to a shell, in order, with what nobody runs."""
    return [block for block in blocks_of(page) if block.language in {"sh", "console"}]


def run_blocks_of(page: Path) -> list[Block]:
    """What of a page is run, Python and shell."""
    return [block for block in blocks_of(page) if block.language in _RUN and not block.not_run]
