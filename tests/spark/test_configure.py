"""`configure`: settings as arguments, checked before a session is created; and the version of PySpark."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast import configure
from holdfast.cli.command_line import main
from holdfast.errors import InvalidRequestError
from holdfast.spark import check_pyspark
from holdfast.spark.compat import settings_of
from holdfast.spark.settings import PREFIX, SettingArguments, Settings, settings_table

SECRET = "the-secret-of-a-test"


def set_on(builder: SparkSession.Builder) -> dict[str, str]:
    """Return the options of a builder, without our prefix."""
    return {key.removeprefix(PREFIX): value for key, value in options_of(builder).items()}


def options_of(builder: SparkSession.Builder) -> dict[str, str]:
    """Return the options of a builder, to which PySpark has no public access."""
    return dict(builder._options)  # noqa: SLF001


def refusal(**settings: Any) -> str:
    builder = SparkSession.builder
    with pytest.raises(InvalidRequestError) as caught:
        configure(builder, **settings)
    assert set_on(builder) == {}
    return str(caught.value)


def test_every_setting_is_an_argument() -> None:
    arguments = [setting.argument for setting in settings_table()]
    assert arguments == list(SettingArguments.__annotations__)


def test_default_text_of_each_setting_is_its_default() -> None:
    for setting in settings_table():
        if setting.default_text is not None:
            assert setting.parse(setting.default_text) == setting.default


def test_values_become_spark_options() -> None:
    builder = SparkSession.builder
    configured = configure(
        builder,
        checkpoint_dir="file:///data",
        num_retained=3,
        single_writer=True,
        orphan_grace_s=7200.0,
        inline_threshold="64k",
        compression="zstd",
        s3_part_size=6 << 20,
        s3_path_style_access=False,
        job_id=None,
    )
    assert configured is builder
    assert set_on(builder) == {
        "checkpoint.dir": "file:///data",
        "checkpoint.num-retained": "3",
        "checkpoint.single-writer": "true",
        "cleanup.orphan-grace": "7200s",
        "state.inline-threshold": "64k",
        "state.compression": "zstd",
        "s3.part-size": "6291456",
        "s3.path-style-access": "false",
    }
    settings = Settings.parse(options_of(builder))
    assert (settings.num_retained, settings.orphan_grace_s) == (3, 7200.0)
    assert settings.inline_threshold == 64 << 10


def test_later_call_on_a_builder_wins() -> None:
    builder = SparkSession.builder.config(f"{PREFIX}checkpoint.num-retained", 5)
    for _ in range(2):
        configure(builder, num_retained=3, job_id="one")
    assert set_on(configure(builder)) == {"checkpoint.num-retained": "3", "job.id": "one"}
    builder.config(f"{PREFIX}checkpoint.num-retained", 7)
    assert set_on(builder)["checkpoint.num-retained"] == "7"


def test_builder_for_spark_connect_is_accepted() -> None:
    builder = configure(SparkSession.builder.remote("sc://nowhere"), job_id="one")
    assert set_on(builder)["job.id"] == "one"


@pytest.mark.parametrize("builder", [None, SparkSession, {}])
def test_objects_other_than_builders_are_refused(builder: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"pass SparkSession\.builder"):
        configure(builder, job_id="one")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_retain": 3}, ["'num_retain'", "did you mean 'num_retained'"]),
        ({"bananas": 3}, ["'bananas'", "`holdfast settings` lists all settings"]),
        ({"num_retained": 0}, ["checkpoint.num-retained", "at least 1"]),
        ({"num_retained": True}, ["checkpoint.num-retained", "at least 1"]),
        ({"single_writer": 1}, ["`true` or `false`"]),
        ({"orphan_grace_s": 60}, ["cleanup.orphan-grace", "at least `10m`"]),
        ({"orphan_grace_s": 7200.5}, ["orphan_grace_s must be a duration", "got a float"]),
        ({"checkpoint_dir": "/data"}, ["no scheme", "file:///"]),
        ({"checkpoint_dir": Path("/data")}, ["checkpoint_dir", "PosixPath", "URI"]),
        ({"job_id": "../x"}, ["job id"]),
        ({"s3_part_size": "1m"}, ["s3.part-size"]),
        ({"s3_checksum": "md5"}, ["s3.checksum"]),
        ({"num_retained": 3, "compression": "gzip"}, ["state.compression"]),
    ],
)
def test_bad_settings_are_refused_and_none_is_set(
    settings: dict[str, Any], words: list[str]
) -> None:
    message = refusal(**settings)
    for word in words:
        assert word in message


def test_existing_options_of_a_builder_are_checked() -> None:
    builder = SparkSession.builder.config(f"{PREFIX}checkpoint.dirr", "file:///data")
    with pytest.raises(
        InvalidRequestError, match=r"did you mean 'spark\.holdfast\.checkpoint\.dir'"
    ):
        configure(builder)


def test_half_of_the_credentials_may_come_from_the_cluster() -> None:
    builder = configure(SparkSession.builder, s3_access_key="name", s3_kms_key="key")
    assert set_on(builder) == {"s3.access-key": "name", "s3.kms-key": "key"}


def test_secrets_are_not_shown() -> None:
    for settings in (
        {"s3_secret_key": SECRET, "num_retained": 0},
        {"s3_secret_key": SECRET.encode()},
        {"s3_endpoint": f"http://name:{SECRET}@store"},
        {"checkpoint_dir": f"s3://name:{SECRET}@bucket/data"},
    ):
        assert SECRET not in refusal(**settings)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("spark.holdfast.execution.checkpointing.dir", ["'spark.holdfast.checkpoint.dir' here"]),
        ("spark.holdfast.state.checkpoints.dir", ["'spark.holdfast.checkpoint.dir' here"]),
        ("spark.holdfast.state.backend.fs.checkpointdir", ["'spark.holdfast.checkpoint.dir' here"]),
        (
            "spark.holdfast.state.checkpoints.num-retained",
            ["'spark.holdfast.checkpoint.num-retained' here"],
        ),
        (
            "holdfast.execution.checkpointing.snapshot-compression",
            ["'spark.holdfast.state.compression' here"],
        ),
        ("spark.holdfast.s3.sse.type", ["'spark.holdfast.s3.server-side-encryption' here"]),
        ("holdfast.checkpoint.dir", ["set 'spark.holdfast.checkpoint.dir'"]),
        ("spark.Holdfast.checkpoint.dir", ["set 'spark.holdfast.checkpoint.dir'"]),
        ("holdfast.checkpoint.dirr", ["did you mean 'spark.holdfast.checkpoint.dir'?"]),
        ("spark.holdfast.", ["`holdfast settings` lists all settings"]),
        ("spark.holdfast.bananas", ["`holdfast settings` lists all settings"]),
    ],
)
def test_unknown_key_is_refused_with_a_suggestion(key: str, words: list[str]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Settings.parse({key: "x"})
    for word in [f"no setting {key!r}", *words]:
        assert word in str(caught.value)


def test_keys_of_other_components_are_ignored() -> None:
    given = {"execution.checkpointing.dir": "x", "holdfaster.dir": "x", "spark.app.name": "x"}
    assert Settings.parse(given) == Settings.parse({})


def test_existing_session_gets_the_settings(spark: SparkSession) -> None:
    try:
        same = configure(SparkSession.builder, job_id="from-configure").getOrCreate()
        spark.conf.set("holdfast.job.id", "dropped")
        configuration = settings_of(spark)
        assert same is spark
        assert configuration[f"{PREFIX}job.id"] == "from-configure"
        with pytest.raises(InvalidRequestError, match=r"set 'spark\.holdfast\.job\.id'"):
            Settings.parse(configuration)
    finally:
        spark.conf.unset("holdfast.job.id")
        spark.conf.unset(f"{PREFIX}job.id")


SUBMITTED = f"""
import json
from holdfast import configure
from holdfast.spark.compat import settings_of
from holdfast.spark.settings import PREFIX
from pyspark.sql import SparkSession

builder = SparkSession.builder.config("{PREFIX}s3.region", "builder")
builder = configure(builder, checkpoint_dir="file:///configured", s3_concurrency=9)
spark = builder.getOrCreate()
spark.conf.set("{PREFIX}s3.ca-bundle", "session")
found = {{key: value for key, value in settings_of(spark).items() if key.startswith(PREFIX)}}
print("FOUND", json.dumps(found))
spark.stop()
"""


@pytest.mark.exhaustive
def test_precedence_is_application_then_command_then_file(tmp_path: Path) -> None:
    keys = ("checkpoint.dir", "job.id", "s3.region", "s3.ca-bundle", "s3.kms-key", "s3.concurrency")
    defaults = dict.fromkeys(keys, "file")
    submitted = {key: "command" for key in keys if key != "s3.kms-key"}
    lines = [f"{PREFIX}{key} {value}" for key, value in defaults.items()]
    (tmp_path / "spark-defaults.conf").write_text("\n".join([*lines, "spark.ui.enabled false"]))
    (tmp_path / "job.py").write_text(SUBMITTED)
    words = [
        word for key, value in submitted.items() for word in ("--conf", f"{PREFIX}{key}={value}")
    ]
    words += ["--conf", "holdfast.job.id=dropped"]
    submit = str(Path(sys.executable).with_name("spark-submit"))
    source = str(Path(__file__).parents[2] / "src")
    ran = subprocess.run(
        [submit, "--master", "local[1]", *words, str(tmp_path / "job.py")],
        env=os.environ
        | {
            "SPARK_CONF_DIR": str(tmp_path),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    [printed] = [line for line in ran.stdout.splitlines() if line.startswith("FOUND ")]
    assert json.loads(printed.removeprefix("FOUND ")) == {
        f"{PREFIX}{key}": value
        for key, value in {
            "checkpoint.dir": "file:///configured",
            "job.id": "command",
            "s3.region": "builder",
            "s3.ca-bundle": "session",
            "s3.kms-key": "file",
            "s3.concurrency": "9",
        }.items()
    }


@pytest.mark.parametrize("version", ["3.4.4", "3.4.0.dev0", "2.4.8"])
def test_old_pyspark_is_refused_in_one_line(version: str) -> None:
    with pytest.raises(ImportError) as refused:
        check_pyspark(version)
    (line,) = str(refused.value).splitlines()
    assert f"needs PySpark 3.5 or later, and this is PySpark {version}" in line


@pytest.mark.parametrize("version", ["3.5.0", "4.0.0.dev3", "4.2.0-preview2", "4.10.0", "5.0.0"])
def test_later_pyspark_is_accepted(version: str) -> None:
    check_pyspark(version)


def test_command_refuses_an_old_pyspark_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("holdfast.spark.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "holdfast.spark")
    monkeypatch.setattr("pyspark.__version__", "3.4.4")
    assert main(["rollback", "file:///nowhere"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "this is PySpark 3.4.4" in line
