"""Words that make a reader stumble: docstrings without a subject, variables without a noun, private files.

Run it from the root: `python infra/checks/plain_words.py`.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NO_SUBJECT = ("That", "Those", "Of", "Its", "Whose", "Them", "Theirs")
NO_NOUN = {"one", "found", "taken", "tried", "it", "them"}

RIDDLE = re.compile(rf'\s*(?:"""|# |\*{{0,2}}[a-z]\w*: )(?:{"|".join(NO_SUBJECT)})\b')
"""A line that begins a docstring, a comment or the description of an argument without a subject."""


def bound_names(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Names that a node binds: variables, arguments, loop targets, functions."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.lineno, node.id
    elif isinstance(node, ast.arg):
        yield node.lineno, node.arg
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.lineno, node.name


def problems(path: Path) -> Iterator[str]:
    """What to mend in a file."""
    if path.name.startswith("_") and not path.name.startswith("__"):
        yield f"{path}: a file's name begins with no underscore; its package says what is public"
    text = path.read_text("utf-8")
    for line, content in enumerate(text.splitlines(), 1):
        if RIDDLE.match(content):
            yield f"{path}:{line}: {content.strip()[:40]!r} has no subject; say what the thing is or does"
    for node in ast.walk(ast.parse(text)):
        for line, name in bound_names(node):
            if name in NO_NOUN:
                yield f"{path}:{line}: {name!r} is no name; name the thing"


def main() -> int:
    """Print what to mend."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    names = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split()
    paths = [Path(name) for name in names if not Path(name).is_symlink()]
    lines = [line for path in paths if path.is_file() for line in problems(path)]
    print("\n".join(lines), end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
