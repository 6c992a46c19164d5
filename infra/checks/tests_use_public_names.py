"""Private names that tests import or patch; what they read of others is for ruff (SLF001).

A test that pins the inside of a module keeps it from being changed. Hand in a clock, settings, a store or its
faults instead (`holdfast.testing`), patch what third parties make public, or make a name public that is worth it.

Run it from the root: `python infra/checks/tests_use_public_names.py`.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = ("tests", "integration_tests")
PATCHING = {"setattr", "delattr", "patch", "object", "interrupt_at", "run_after"}
"""Functions that take the name of what they replace; `object` is that of `mock.patch`."""


def is_private(name: str) -> bool:
    """Return whether a part of a dotted name begins with one underscore."""
    parts = name.split(".")
    return all(part.isidentifier() for part in parts) and any(
        part.startswith("_") and not part.startswith("__") for part in parts
    )


def private_names(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Private names that a node imports or patches, each with its line."""
    if isinstance(node, ast.ImportFrom):
        for alias in node.names:
            if is_private(alias.name):
                yield node.lineno, alias.name
    elif isinstance(node, ast.Call):
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name in PATCHING:
            for argument in node.args[:2]:
                text = argument.value if isinstance(argument, ast.Constant) else None
                if isinstance(text, str) and is_private(text):
                    yield argument.lineno, text


def main() -> int:
    """Print the private names."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *TESTS]
    names = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split()
    lines = [
        f"{path}:{line}: {name} is private; use what is handed in, or a public name"
        for path in map(Path, names)
        if path.suffix == ".py" and path.is_file()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        for line, name in private_names(node)
    ]
    print("\n".join(lines), end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
