"""The folders of the source and who imports whom, drawn from the code, for CONTRIBUTING.md.

Run it from the root: `python infra/checks/folder_map.py`; with `--check` it exits with 1 if the picture is old.
"""

import ast
import importlib
import sys
from pathlib import Path

import grimp

PAGE = Path("CONTRIBUTING.md")
BEGIN, END = "<!-- folders: made by `make docs` -->\n", "<!-- end of folders -->"
LAYERS = ("cli", "flink", "spark", "spark_progress", "testing", "backends", "locations", "common")
"""From the top down; other modules are not shown."""


def folders(graph: grimp.ImportGraph) -> list[str]:
    """Every package of every layer, the layers from the top down, each before what is in it."""
    packages = sorted(module for module in graph.modules if graph.find_children(module))
    return [
        package
        for layer in LAYERS
        for package in packages
        if f"{package}.".startswith(f"holdfast.{layer}.")
    ]


def imported_folders(graph: grimp.ImportGraph, package: str, known: list[str]) -> list[str]:
    """Return the other folders that a folder's own modules import."""
    targets = set()
    for module in {package, *graph.find_children(package)} - set(known) | {package}:
        for target in graph.find_modules_directly_imported_by(module):
            home = target if target in known else target.rpartition(".")[0]
            if home in known and not f"{home}.".startswith(f"{package}."):
                targets.add(home)
    return sorted(name for name in targets if not f"{package}.".startswith(f"{name}."))


def subject(package: str) -> str:
    """The first line of a package's docstring."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} can't be found")
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text("utf-8"))) or ""
    return text.splitlines()[0]


def short(package: str, importer: str) -> str:
    """A folder as a reader of another one in the same layer would call it."""
    layer = ".".join(importer.split(".")[:2]) + "."
    return package.removeprefix(layer).removeprefix("holdfast.")


def picture() -> str:
    """The folders as text: what is in each, and which others it imports."""
    graph = grimp.build_graph("holdfast", include_external_packages=False)
    known = folders(graph)
    lines = []
    for package in known:
        depth = package.count(".") - 1
        name = "  " * depth + package.rpartition(".")[2] + "/"
        others = [short(other, package) for other in imported_folders(graph, package, known)]
        lines.append(f"{name:<24}{subject(package)}")
        if others:
            lines.append(f"{'':<24}→ {', '.join(others)}")
    return "```text\n" + "\n".join(lines) + "\n```\n"


def main() -> int:
    """Write the picture, or compare."""
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    new = before + BEGIN + picture() + END + after
    if "--check" in sys.argv:
        return int(new != page)
    PAGE.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
