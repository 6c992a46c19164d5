"""Names of the package that nothing but tests uses: each gets its door, or goes.

It looks at what modules define at their top, and at the methods of classes that users don't see. A use is any
mention in code outside of the definition itself; imports, lists of exports, comments and docstrings do not count. In
pages and templates every mention counts. Names are compared as text: a name that is used somewhere hides an unused
one with the same name. A name that the `__init__` of a package lists must be imported from it, if only by a test.

Run it from the root: `python infra/checks/unused_names.py`.
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SOURCES = ("locations", "backends", "src")
USERS = (*SOURCES, "examples", "benchmarks", "docs", "infra", "README.md")
TESTS = ("tests", "integration_tests")
TEXTS = {".md", ".jinja", ".toml"}
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
IMPORT = re.compile(r"from ((?:pyspark_)?holdfast[\w.]*) import (?:\(([^)]*)\)|([^(\n]+))")
PROSE = re.compile(r"\w+ \w+")

DOCUMENTED = re.compile(r"^::: (holdfast[\w.]*)\.(\w+)$", re.MULTILINE)
"""Packages and names in the pages of the API reference. Methods of these classes are public, too."""

CALLED_FROM_ELSEWHERE = {
    "addInPlace": "PySpark's accumulators call it",
    "appendList": "processors of PySpark call it",
    "appendValue": "processors of PySpark call it",
    "containsKey": "processors of PySpark call it",
    "deleteIfExists": "processors of PySpark call it",
    "getMapState": "processors of PySpark call it",
    "finish_request": "socketserver calls it",
    "getValue": "processors of PySpark call it",
    "pushFilters": "PySpark's data sources call it",
    "handle_error": "socketserver calls it",
    "handle_expect_100": "http.server calls it",
    "handle_one_request": "http.server calls it",
    "initialOffset": "Spark calls it",
    "log_message": "http.server calls it",
    "missing_host_key": "paramiko calls it",
    "parse_known_args": "argparse calls it",
    "readall": "io.RawIOBase calls it",
    "shutdown_request": "socketserver calls it",
    "streamReader": "Spark calls it",
}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def tracked_files(*folders: str) -> list[Path]:
    """The files that git knows below these folders."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return [path for path in map(Path, names) if path.is_file() and not path.is_symlink()]


def exports(path: Path, package: str) -> set[str]:
    """Return the names that the `__init__` of a package lists: in `__all__`, or the imports from its own modules."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    own = (node for node in imports if str(node.module).startswith(f"{package}."))
    return {alias.name for node in own for alias in node.names} - mentions(tree).keys()


def documented_names() -> dict[str, set[str]]:
    """Return the names in the API reference, by the package that they are imported from."""
    names: dict[str, set[str]] = {}
    for page in Path("docs").glob("api-*.md"):
        for package, name in DOCUMENTED.findall(page.read_text("utf-8")):
            names.setdefault(package, set()).add(name)
    return names


def definitions(tree: ast.Module, public: set[str]) -> Iterator[tuple[str, Definition]]:
    """Yield the top-level names of a module, and the methods of classes that are not public."""
    for node in tree.body:
        yield from _definitions_in(node)
        if isinstance(node, ast.ClassDef) and node.name not in public:
            for inner in node.body:
                if not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                if not inner.name.startswith("test_"):  # pytest calls those of suites
                    yield from _definitions_in(inner)


def _definitions_in(node: ast.stmt) -> Iterator[tuple[str, Definition]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        names = [node.name]
    elif isinstance(node, ast.Assign):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        names = [node.target.id]
    else:
        return
    assert isinstance(node, Definition)
    for name in names:
        if not name.startswith("__"):
            yield name, node


def mentions(tree: ast.AST) -> Counter[str]:
    """Count each name in code, without imports, exports and docstrings."""
    names: Counter[str] = Counter()
    for node in _code(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                names[name] += 1
            case ast.keyword(arg=str(name)):
                names[name] += 1
            case ast.Constant(value=str(text)) if not PROSE.search(text):
                names.update(NAME.findall(text))
    return names


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_exports = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        if not is_docstring and not is_exports:
            yield node
            yield from _code(node)


def all_mentions() -> Counter[str]:
    """Count each name in code and pages, without tests."""
    uses: Counter[str] = Counter()
    for path in tracked_files(*USERS):
        if path.samefile(__file__):
            continue  # it names what it allows
        if path.suffix == ".py":
            uses += mentions(ast.parse(path.read_text("utf-8")))
        elif path.suffix in TEXTS:
            uses += Counter(NAME.findall(path.read_text("utf-8")))
    return uses


def unused_definitions() -> Iterator[str]:
    """Yield a message for each name that is only used by its definition."""
    uses, public = all_mentions(), set().union(*documented_names().values())
    not_needed = set(CALLED_FROM_ELSEWHERE)
    for path in tracked_files(*SOURCES):
        if path.suffix != ".py":
            continue
        for name, node in definitions(ast.parse(path.read_text("utf-8")), public):
            if uses[name] > mentions(node)[name]:
                continue
            if name not in CALLED_FROM_ELSEWHERE:
                yield f"{path}:{node.lineno}: {name} is used by nothing but tests; give it a door or remove it"
            not_needed.discard(name)
    for name in sorted(not_needed):
        yield f"{__file__}: {name} no longer needs to be allowed"


def unused_exports() -> Iterator[str]:
    """Yield a message for each listed name that is never imported from its package."""
    imports = "".join(
        path.read_text("utf-8") for path in tracked_files(*USERS, *TESTS) if path.suffix == ".py"
    )
    imported = documented_names()
    for package, several, single in IMPORT.findall(imports):
        imported.setdefault(package, set()).update(NAME.findall(several or single))
    for path in tracked_files(*SOURCES):
        if path.name != "__init__.py" or str(path) == "src/holdfast/__init__.py":
            continue
        folders = path.parent.parts
        package = ".".join(folders[1:] if folders[0] == "src" else ("holdfast", *folders))
        for name in sorted(exports(path, package) - imported.get(package, set())):
            yield f"{path}: {name} is listed but never imported from here; remove it from the list"


def main() -> int:
    """Print the unused names."""
    unused = [*unused_definitions(), *unused_exports()]
    print("\n".join(unused), end="\n" if unused else "")
    return 1 if unused else 0


if __name__ == "__main__":
    sys.exit(main())
