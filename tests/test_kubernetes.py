"""The image and the manifests for Kubernetes fit together, and the page shows them."""

import re
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml  # type: ignore[import-untyped]  # only its results are used, which are Any
from pages.blocks import blocks_of

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "infra" / "kubernetes"
PAGE = ROOT / "docs" / "kubernetes.md"


@pytest.fixture
def manifests() -> dict[str, list[dict[str, Any]]]:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for manifest in yaml.safe_load_all((FOLDER / "spark-application.yaml").read_text()):
        by_kind.setdefault(manifest["kind"], []).append(manifest)
    return by_kind


def test_page_shows_the_application_of_the_manifests() -> None:
    [application] = [block.text for block in blocks_of(PAGE) if block.language == "yaml"]
    assert (FOLDER / "spark-application.yaml").read_text().endswith(f"---\n{application}")


def test_manifests_refer_to_each_other(manifests: dict[str, list[dict[str, Any]]]) -> None:
    [application] = manifests["SparkApplication"]
    accounts = {account["metadata"]["name"] for account in manifests["ServiceAccount"]}
    spec = application["spec"]
    assert {spec["driver"]["serviceAccount"], spec["executor"]["serviceAccount"]} == accounts
    [binding] = manifests["RoleBinding"]
    assert [subject["name"] for subject in binding["subjects"]] == [
        spec["driver"]["serviceAccount"]
    ]
    assert [role["metadata"]["name"] for role in manifests["Role"]] == [binding["roleRef"]["name"]]
    [budget] = manifests["PodDisruptionBudget"]
    labels = budget["spec"]["selector"]["matchLabels"]
    assert labels["sparkoperator.k8s.io/app-name"] == application["metadata"]["name"]


def test_pods_run_as_the_user_of_the_image(manifests: dict[str, list[dict[str, Any]]]) -> None:
    [user] = re.findall(r"^USER (\d+)$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    [application] = manifests["SparkApplication"]
    for role in ("driver", "executor"):
        assert application["spec"][role]["securityContext"]["runAsUser"] == int(user)


def test_image_has_the_locked_spark_and_its_hadoop(
    manifests: dict[str, list[dict[str, Any]]],
) -> None:
    [locked] = re.findall(
        r"^pyspark==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE
    )
    assert f'"pyspark=={locked}"' in (FOLDER / "Dockerfile").read_text()
    assert manifests["SparkApplication"][0]["spec"]["sparkVersion"] == locked
    if pyspark.__version__ == locked:
        [hadoop] = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
        version = hadoop.stem.removeprefix("hadoop-client-api-")
        assert f"<version>{version}</version>" in (FOLDER / "pom.xml").read_text()
