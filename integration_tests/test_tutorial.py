"""The tutorial's section about S3, with both of the query's directories in a bucket of a real server."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from contracts.patience import HANGS_S
from pages.blocks import blocks_of
from pages.running import run_page
from servers.s3 import S3Bucket, S3Server

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
SECTIONS = {"1. A job on your laptop", "2. A crash", "3. State on S3"}


@pytest.fixture(scope="module")
def jars(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Jars for `s3a://`, which Spark fetches once: 700 MB."""
    [settings] = [block.text for block in blocks_of(PAGE) if block.saved_as == "s3.conf"]
    [package] = [line.split()[1] for line in settings.splitlines() if "jars.packages" in line]
    program = tmp_path_factory.mktemp("jars") / "nothing.py"
    program.write_text("")
    submit = Path(sys.executable).with_name("spark-submit")
    command = [str(submit), "--packages", package, str(program)]
    try:
        fetched = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=HANGS_S
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"Spark has not fetched {package} within {HANGS_S} s")
    if fetched.returncode:
        pytest.skip(f"Spark can't fetch {package}: {fetched.stderr.strip().splitlines()[-1]}")


@pytest.fixture
def bucket(minio: S3Server) -> Iterator[S3Bucket]:
    """The bucket that the page creates."""
    bucket = S3Bucket(minio, "shop", minio.client())
    yield bucket
    bucket.delete()
    bucket.client.close()


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("jars")
def test_the_tutorial_forks_its_job_to_s3(bucket: S3Bucket, tmp_path: Path) -> None:
    sections = {block.section for block in blocks_of(PAGE)}
    assert sections > SECTIONS
    run_page(
        PAGE,
        tmp_path,
        leave_out=sections - SECTIONS,
        replacements={"http://127.0.0.1:9000": bucket.server.endpoint},
        AWS_ACCESS_KEY_ID=bucket.server.access_key,
        AWS_SECRET_ACCESS_KEY=bucket.server.secret_key,
        no_proxy="127.0.0.1",
    )
    for directory in ("spark/offsets/", "spark/commits/", "state/"):
        assert bucket.keys(directory), directory
