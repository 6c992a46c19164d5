import json
import re
import tomllib
from pathlib import Path

import pytest
from contracts.patience import HANGS_S
from contracts.processes import output_of, python

ROOT = Path(__file__).parents[1]


def test_every_package_is_in_the_build() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {f"holdfast.{name}": name for name in ("locations", "backends")}
    assert setuptools["package-dir"] == {"": "src"} | folders
    packages = [
        ".".join((*package.split("."), *file.parent.relative_to(ROOT / folder).parts)).strip(".")
        for package, folder in setuptools["package-dir"].items()
        for file in (ROOT / folder).rglob("__init__.py")
    ]
    assert sorted(setuptools["packages"]) == sorted(packages)


def test_every_data_file_of_a_package_is_in_the_build() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    listed = {
        f"{package.replace('.', '/')}/{name}"
        for package, names in setuptools["package-data"].items()
        for name in names
    }
    files = {
        file.relative_to(ROOT / "src").as_posix()
        for file in (ROOT / "src" / "holdfast").rglob("*.*")
        if file.is_file() and file.suffix not in (".py", ".pyc")
    }
    assert listed == files


def test_contributing_maps_names_of_flink_to_their_files() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| `([\w/]+\.py)`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 20
    for name, file in rows:
        assert re.search(rf"^(class )?{name}\b", (ROOT / file).read_text(), re.MULTILINE), (
            name,
            file,
        )


def test_files_in_contributing_exist() -> None:
    files = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert [file for file in files if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("name", ["locations", "backends"])
def test_the_package_links_to_the_folder(name: str) -> None:
    link = ROOT / "src" / "holdfast" / name
    assert link.is_symlink()
    assert link.resolve() == ROOT / name


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("holdfast", {"pyspark", "pyarrow", "boto3", "msgspec"}),
        ("holdfast.errors", {"pyspark", "pyarrow", "boto3", "msgspec"}),
        ("holdfast.locations", {"pyspark", "pyarrow", "boto3", "pandas", "numpy"}),
        ("holdfast.backends", {"pyspark", "boto3", "pandas"}),
    ],
)
def test_importing_a_layer_imports_nothing_heavier(module: str, forbidden: set[str]) -> None:
    source = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    imported = {name.partition(".")[0] for name in json.loads(output_of(source))}
    assert imported & forbidden == set()


@pytest.mark.parametrize("name", ["locations", "backends"])
def test_the_folder_can_not_be_imported_from_the_root_of_the_repository(name: str) -> None:
    source = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {name}"
    with python(source) as process:
        _, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 1
    assert f"ImportError: import holdfast.{name}, not {name}" in err


@pytest.mark.parametrize("name", ["locations", "backends"])
def test_public_names_are_complete_and_exist(name: str) -> None:
    source = f"""
import holdfast.{name} as module
public = {{name for name, value in vars(module).items()
          if getattr(value, "__module__", "").startswith(module.__name__)}}
assert not public - set(module.__all__), public - set(module.__all__)
assert all(hasattr(module, name) for name in module.__all__)
assert len(set(module.__all__)) == len(module.__all__)
"""
    output_of(source)
