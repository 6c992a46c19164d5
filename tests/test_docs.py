"""The documentation is true: its code runs, its tables are made from code, its links lead somewhere."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from servers.hdfs import HdfsServer, hdfs_server

from docs.generate import settings_page
from holdfast import errors

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
HDFS_PAGE = ROOT / "docs" / "how-to-use-hdfs.md"

PRINTED = {
    "how-to-configure.md": "'spark.holdfast.checkpoint.dir' here",
    "how-to-choose-state.md": "by-customer orders migrated",
    "how-to-keep-checkpoints.md": "0 bytes would go, 0 files are too young to tell",
    "how-to-read-and-write-state.md": "gone on with state repaired, digits: 10",
    "how-to-rescale.md": "subtasks: 3",
    "how-to-test-an-adapter.md": "test_a_small_checkpoint_costs_one_request PASSED",
    "how-to-take-savepoints.md": "both went on: True",
    "how-to-use-several-operators.md": "one checkpoint of allowed and first-seen",
    "how-to-write-a-job.md": "values",
    "how-to-write-to-a-database.md": "batches, 2.0 rows each",
}
"""What a page's program says when all went well."""

# The tests of the first have directories of their own.
WITHOUT_A_JOB = ("how-to-test-an-adapter.md", "how-to-configure.md")


A_WHILE = re.compile(r"(\w+)\.awaitTermination\(\d+\)")
SOME_BATCHES = r"""
enough = ((\1.lastProgress or {"batchId": 0})["batchId"]) + 3
while \1.isActive and (\1.lastProgress or {"batchId": 0})["batchId"] < enough:
    \1.awaitTermination(1)
"""
"""What a page waits for here: on a busy machine a few seconds may be too few."""


def python_of(page: Path) -> str:
    """All Python of a page, in order: later blocks go on where earlier ones ended."""
    return "\n".join(BLOCK.findall(page.read_text()))


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if python_of(page) and page != HDFS_PAGE],
    ids=lambda page: page.name,
)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    ran = run(page, tmp_path)
    assert ran.returncode == 0, ran.stderr
    if page.name not in WITHOUT_A_JOB:
        completed = list(tmp_path.glob("*/*/chk-*/_metadata"))
        assert completed, "the page's job has taken no checkpoint"
    if page.name == "README.md":
        sizes = [
            pq.read_metadata(file).num_rows
            for file in tmp_path.glob("right-sized/batch=*/*.parquet")
        ]
        assert {size for size in sizes if size} == {1000}
    else:
        assert PRINTED[page.name] in ran.stdout


def test_the_python_of_the_hdfs_page_runs(name_service: HdfsServer, tmp_path: Path) -> None:
    ran = run(HDFS_PAGE, tmp_path, HADOOP_CONF_DIR=str(name_service.conf_dir))
    assert ran.returncode == 0, ran.stderr
    [newest] = ran.stdout.splitlines()
    checkpoint_id, pointer = newest.split()
    assert pointer == f"hdfs://nameservice1/checkpoints/total/chk-{checkpoint_id}"
    files = name_service.client().list_status("/checkpoints/total", recursive=True)
    assert f"/checkpoints/total/chk-{checkpoint_id}/_metadata" in {file.path for file in files}


@pytest.fixture
def name_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HdfsServer]:
    """Servers that the page's settings lead to, if Hadoop's jars are on this machine."""
    # Integration tests may fetch them, these go without network.
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text(
        "#!/bin/sh\necho '[ERROR] offline mode; make hdfs-servers brings them'; exit 1\n"
    )
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(maven.parent), prepend=os.pathsep)
    with hdfs_server() as server:
        conf_dir = tmp_path / "conf"
        conf_dir.mkdir()
        site = {
            "dfs.nameservices": "nameservice1",
            "dfs.ha.namenodes.nameservice1": "nn1",
            "dfs.namenode.rpc-address.nameservice1.nn1": server.uri.removeprefix("hdfs://"),
            "dfs.client.failover.proxy.provider.nameservice1": (
                "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
            ),
        }
        properties = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>"
            for name, value in site.items()
        )
        (conf_dir / "hdfs-site.xml").write_text(f"<configuration>{properties}</configuration>")
        yield HdfsServer(uri=server.uri, conf_dir=conf_dir, directory=server.directory)


def run(page: Path, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a page's program in a directory that stands for /tmp; all else is as printed."""
    program = python_of(page).replace("/tmp/", f"{directory}/")
    program = A_WHILE.sub(SOME_BATCHES, program)
    script = directory / "page.py"
    script.write_text(program)
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=directory,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_settings_page_is_made_from_the_code() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == settings_page()


def test_every_error_has_its_place_in_troubleshooting() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    leaves = {
        error.__name__
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.CheckpointError)
    } - {"CheckpointError", "StreamClosedError", "CheckpointNotFoundError"}
    assert [name for name in sorted(leaves) if f"`{name}`" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []
