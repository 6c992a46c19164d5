"""Module-level names of the package that nothing but tests uses: each gets its door, or goes.

Run it from the root: `python infra/checks/unused_names.py`.
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

SOURCES = ("locations", "backends", "src")
USERS = (*SOURCES, "examples", "benchmarks", "docs", "infra", "README.md")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def tracked(*folders: str) -> list[Path]:
    """The files that git knows below these folders."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return [path for path in map(Path, names) if path.is_file() and not path.is_symlink()]


def defined(tree: ast.Module) -> dict[str, int]:
    """What a module defines at its top level: the line of each name."""
    names: dict[str, int] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = node.lineno
        elif isinstance(node, ast.Assign):
            names |= {
                target.id: node.lineno for target in node.targets if isinstance(target, ast.Name)
            }
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = node.lineno
    return {name: line for name, line in names.items() if not name.startswith("__")}


def is_only_export(node: ast.stmt, path: Path) -> bool:
    """Whether a statement of an `__init__` just hands names on."""
    if path.name != "__init__.py":
        return False
    is_list = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    return is_list or isinstance(node, ast.ImportFrom)


def words(path: Path) -> Counter[str]:
    """How often each name stands in a file, without what only hands names on or imports them."""
    text = path.read_text("utf-8", "replace")
    if path.suffix != ".py":
        return Counter(NAME.findall(text))
    tree = ast.parse(text)
    lines = text.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        if isinstance(node, ast.ImportFrom | ast.Import) or is_only_export(node, path):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return Counter(NAME.findall("\n".join(lines)))


def main() -> int:
    """Print each name that stands nowhere but where it is defined."""
    uses: Counter[str] = Counter()
    for path in tracked(*USERS):
        if path.suffix in {".py", ".md", ".jinja", ".toml"}:
            uses += words(path)
    unused = [
        f"{path}:{line}: {name} is used by nothing but tests; give it a door or remove it"
        for path in tracked(*SOURCES)
        if path.suffix == ".py"
        for name, line in defined(ast.parse(path.read_text("utf-8"))).items()
        if uses[name] <= 1
    ]
    print("\n".join(unused), end="\n" if unused else "")
    return 1 if unused else 0


if __name__ == "__main__":
    sys.exit(main())
