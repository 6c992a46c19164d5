"""The code of the documentation runs, and prints what the pages show."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages.blocks import PAGES, python_of, run_blocks_of, shell_blocks_of
from pages.data import write_data, write_job
from pages.running import run_page, saves_files
from servers.buckets import MemoryS3Server, memory_s3
from servers.hdfs import HdfsServer, hdfs_server
from servers.s3 import S3Bucket, settings_of
from servers.tables import table_jars

from holdfast import read_state, subtasks
from holdfast.locations import use_s3

__all__ = ["memory_s3", "table_jars"]

ROOT = Path(__file__).parents[2]
MY_BUCKET = "my-bucket"
HDFS_PAGE = ROOT / "docs" / "hdfs.md"
TABLES_PAGE = ROOT / "docs" / "delta-and-iceberg.md"

LEFT_OUT = {"tutorial.md": {"3. State on S3"}}
"""Sections of pages that integration tests run."""

PRINTED = {
    "api-testing.md": "quiet since: 30000",
    "aggregates.md": "orders of a customer: 8",
    "delta-and-iceberg.md": "7 customers in Delta\n7 changes in Iceberg",
    "deduplication.md": "events: 500\nonce: 300",
    "keep-a-job-running.md": "customers after a restart: 7",
    "enrichment.md": "gold orders: 180",
    "joins.md": "paid: 72\nnot paid: [0, 10, 20, 30]",
    "configuration.md": "'spark.holdfast.checkpoint.dir' here",
    "kinds-of-state.md": "by-customer orders migrated",
    "monitoring.md": "damaged: []",
    "retention.md": "0 bytes would go, 0 files are too young to tell",
    "from-flink.md": "tens: True\nann 19 [('milk', 4), ('tea', 15)]",
    "flink-savepoints.md": "2 entries of a map",
    "move-a-job.md": "it resumed: True",
    "from-transformwithstate.md": "counted on from 20: True",
    "from-foreachbatch.md": "a customer is first 1 time",
    "state-as-tables.md": "resumed with repaired state, digits: 10",
    "rescaling.md": "subtasks: 3",
    "live-state.md": "the newest checkpoint is open: True",
    "stateful-processors.md": "quiet: [(0, 1683)]",
    "adapter-tests.md": "test_a_small_checkpoint_costs_one_request PASSED",
    "savepoints.md": "both resumed: True",
    "event-time.md": "completed minutes: 4",
    "several-operators.md": "one checkpoint of allowed and first-orders\nnumbers for each rejected line: 9",
    "operators.md": "7 users have a total",
    "keyed-state-library.md": "restored: [5.0, 10.0]",
    "keyed-state.md": "7 users",
    "state-backends.md": "continued on RocksDB: True",
    "sinks.md": "batches: 1, rows of each: 2.0",
}
"""Lines of output of each page's program, if it succeeds."""

# The tests of the first create their directories; the others have no jobs.
WITHOUT_A_JOB = (
    "keyed-state-library.md",
    "adapter-tests.md",
    "configuration.md",
    "flink-savepoints.md",
    "api-testing.md",
)


def has_session_of_tests(page: Path) -> bool:
    """Return whether its Python runs in the session that tests share, which it must not stop."""
    program = python_of(page)
    has_session = "SparkSession" in program and "spark.stop()" not in program
    return has_session and not saves_files(page)


@pytest.mark.exhaustive  # many start a separate Spark
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if run_blocks_of(page) and page not in {HDFS_PAGE, TABLES_PAGE}],
    ids=lambda page: page.name,
)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    code = "".join(block.text for block in run_blocks_of(page))
    if "/data/" in code:
        write_data(tmp_path / "data")
    commands = "".join(block.commands for block in shell_blocks_of(page) if not block.not_run)
    environment = request.getfixturevalue("my_bucket") if MY_BUCKET in commands else {}
    session = request.getfixturevalue("spark") if has_session_of_tests(page) else None
    leave_out = LEFT_OUT.get(page.name, set())
    printed = run_page(page, tmp_path, session, leave_out=leave_out, **environment)
    if page.name == "README.md":
        totals = read_state(f"file://{tmp_path}/holdfast", "totals").to_pylist()
        rows = sum(row["value"]["orders"] for row in totals)
        assert {row["customer"] for row in totals} == {0, 1, 2}
        assert rows > 0
        assert rows % 1000 == 0
        assert sum(row["value"]["spent"] for row in totals) == rows * (rows - 1) // 2
        assert subtasks(f"file://{tmp_path}/holdfast").num_rows == 8
    elif python_of(page) and not saves_files(page):
        assert [line for line in PRINTED[page.name].splitlines() if line not in printed] == []
    if python_of(page) and page.name not in WITHOUT_A_JOB:
        written = tmp_path.rglob("chk-*/_metadata")
        completed = [file for file in written if tmp_path / "data" not in file.parents]
        assert completed, "the page's job has taken no checkpoint"


@pytest.mark.parametrize("page", PRINTED)
def test_a_page_quotes_the_output_of_its_program(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert [line for line in PRINTED[page].splitlines() if line not in text] == []


@pytest.mark.exhaustive  # it starts a cluster
def test_the_code_of_the_hdfs_page_runs(name_service: HdfsServer, tmp_path: Path) -> None:
    printed = run_page(HDFS_PAGE, tmp_path, HADOOP_CONF_DIR=str(name_service.conf_dir))
    [newest] = printed.splitlines()
    checkpoint_id, pointer = newest.split()
    assert pointer == f"hdfs://nameservice1/checkpoints/total/chk-{checkpoint_id}"
    files = name_service.client().list_status("/checkpoints/total", recursive=True)
    assert f"/checkpoints/total/chk-{checkpoint_id}/_metadata" in {file.path for file in files}


@pytest.mark.exhaustive  # a separate Spark
@pytest.mark.usefixtures("without_maven")
def test_the_code_of_the_page_on_tables_runs(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    jars = ",".join(map(str, request.getfixturevalue("table_jars").iterdir()))
    printed = run_page(TABLES_PAGE, tmp_path, PYSPARK_SUBMIT_ARGS=f"--jars {jars} pyspark-shell")
    assert printed.splitlines() == PRINTED[TABLES_PAGE.name].splitlines()


@pytest.fixture
def my_bucket(memory_s3: MemoryS3Server) -> Iterator[dict[str, str]]:
    """Variables that lead to a server with `s3://my-bucket/holdfast`, where job `totals` is."""
    client = memory_s3.client()
    client.create_bucket(Bucket=MY_BUCKET)
    bucket = S3Bucket(memory_s3, MY_BUCKET, client)
    use_s3(settings_of(memory_s3), MY_BUCKET)
    try:
        write_job(f"s3://{MY_BUCKET}/holdfast", "file:///data/totals-spark")
        yield {
            "AWS_ENDPOINT_URL": memory_s3.endpoint,
            "AWS_ACCESS_KEY_ID": memory_s3.access_key,
            "AWS_SECRET_ACCESS_KEY": memory_s3.secret_key,
            "AWS_REGION": memory_s3.region,
            "no_proxy": "127.0.0.1",
        }
    finally:
        bucket.delete()
        client.close()


@pytest.fixture
def without_maven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide Maven: integration tests may fetch jars, these go without network."""
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text("#!/bin/sh\necho '[ERROR] offline mode; make test-all brings them'; exit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(maven.parent), prepend=os.pathsep)


@pytest.fixture
def name_service(without_maven: None, tmp_path: Path) -> Iterator[HdfsServer]:
    """Servers that the page's settings lead to, if Hadoop's jars are on this machine."""
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
