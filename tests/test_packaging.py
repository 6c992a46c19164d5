import json
import os
import re
import shlex
import tomllib
from importlib.metadata import metadata, requires
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # only its results are used, which are Any
from contracts.patience import HANGS_S
from contracts.processes import output_of, python
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
WORKFLOWS = [ROOT / ".github" / "workflows" / f"{name}.yml" for name in ("ci", "docs", "release")]
FORMS = [ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml" for name in ("bug", "feature")]

WITHOUT_A_COMMIT = {"pypa/gh-action-pypi-publish@release/v1"}
"""Actions that are pinned to a branch; CONTRIBUTING has the step that pins them."""


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


def steps_of(workflow: Path) -> list[dict[str, Any]]:
    """Return the steps of all jobs of a workflow."""
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def test_every_workflow_is_checked() -> None:
    assert sorted((ROOT / ".github" / "workflows").iterdir()) == WORKFLOWS


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_runs_only_make_targets_and_scripts(workflow: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [step["run"] for step in steps_of(workflow) if "run" in step]
    for command in commands:
        assert "${{" not in command, "names of branches and tags must not become a shell's code"
        program, *arguments = shlex.split(command)
        if program == "make":
            assert {word for word in arguments if "=" not in word} <= targets, command
        else:
            assert os.access(ROOT / program, os.X_OK), command


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_starts_with_read_access(workflow: Path) -> None:
    content = yaml.safe_load(workflow.read_text())
    assert content["permissions"] == {"contents": "read"}
    writing = [job for job in content["jobs"].values() if "permissions" in job]
    assert all("environment" in job for job in writing)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.name)
def test_actions_are_pinned_to_a_commit(workflow: Path) -> None:
    actions = {step["uses"] for step in steps_of(workflow) if "uses" in step}
    pinned = {action for action in actions if re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action)}
    assert actions - pinned <= WITHOUT_A_COMMIT


def test_workflows_test_the_pythons_of_the_classifiers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    supported = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    ci, _, release = (yaml.safe_load(file.read_text())["jobs"] for file in WORKFLOWS)
    assert release["test"]["strategy"]["matrix"]["python"] == supported
    assert set(supported) < set(ci["checks"]["strategy"]["matrix"]["python"])


def test_only_extras_of_spark_install_pyspark_or_pandas() -> None:
    extras = ["", *(metadata("holdfast").get_all("Provides-Extra") or [])]
    installing = set()
    for requirement in map(Requirement, requires("holdfast") or []):
        if requirement.name in {"pyspark", "pandas"} or requirement.extras & {"spark", "connect"}:
            marker = requirement.marker
            installing |= {
                name for name in extras if not marker or marker.evaluate({"extra": name})
            }
    assert installing == {"spark", "connect", "all"}


@pytest.mark.parametrize("form", FORMS, ids=lambda file: file.name)
def test_a_field_of_an_issue_form_has_a_label_and_a_separate_id(form: Path) -> None:
    content = yaml.safe_load(form.read_text())
    assert content["name"]
    assert content["description"]
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)


def test_the_citation_has_version_and_license_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]
