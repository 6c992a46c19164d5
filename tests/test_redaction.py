"""No secret of a URI is in an error, its chain, a log or the output of a command, wherever it came in."""

import logging
import re
import traceback
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import (
    preview_rollback,
    redaction,
    restore_savepoint,
    roll_back,
    rollback_points,
    take_savepoint,
)
from holdfast.cli.command_line import main
from holdfast.common import checkpoint_directory
from holdfast.errors import CheckpointError, InvalidRequestError
from holdfast.locations import (
    AzureSettings,
    FileSystemCheckpointStorage,
    GcsSettings,
    MemoryCheckpointStorage,
    S3Settings,
    checkpoint_storage,
    find_checkpoint,
    find_checkpoints,
    latest_checkpoint,
    sweep,
    use_azure,
    use_gcs,
    use_s3,
)
from holdfast.locations.adapters import file_system_for
from holdfast.locations.coordination import load_latest_checkpoint, sweep_savepoints
from holdfast.locations.storages import resolve_pointer
from holdfast.spark.checkpoint_location import Moves
from holdfast.spark.data_source import StateView
from holdfast.spark.settings import Settings

SECRET = "s3cr3t"
"""Nothing that is planted has it but where it must not be shown."""

LIKE_A_SCHEME = re.compile(r"[A-Za-z0-9+.-]*:/")

schemes = st.sampled_from(
    [
        "s3",
        "S3A",
        "fsspec+s3",
        "gs",
        "abfs",
        "wasbs",
        "sftp",
        "hdfs",
        "file",
        "memory",
        "odd",
        "https",
    ]
)
noise = st.text(st.sampled_from("ab1/:@?=&%+ \\#…é"), max_size=6)
secrets = st.builds(lambda before, after: f"x{before}{SECRET}{after}", noise, noise)
slashes = st.sampled_from([":", ":/", "://", ":///", ":////"])
hosts = st.sampled_from(["bucket", "host:22", "account.example.com", "[::1]:22"])
paths = st.sampled_from(["", "/", "/a", "/a/b@c", "/a b"])


@st.composite
def with_password(draw: st.DrawFn) -> str:
    """A name and a secret before the last `@`; the path has none, because it would be ambiguous."""
    user = draw(st.sampled_from(["KEY", "me", ""]))
    scheme = draw(schemes)
    # The text after file:/ and file:/// is a path.
    head = scheme + draw(st.just("://") if scheme == "file" else slashes)
    return f"{head}{user}:{draw(secrets)}@{draw(hosts)}{draw(paths).replace('@', '')}"


@st.composite
def with_query(draw: st.DrawFn) -> str:
    """A query after the authority, or after the path in a store that is not a local disk."""
    scheme = draw(schemes.filter(lambda name: name != "file"))
    user = draw(st.sampled_from(["", "container@"]))
    return f"{scheme}://{user}{draw(hosts)}{draw(paths)}?sig={draw(secrets)}{draw(paths)}"


@st.composite
def without_scheme(draw: st.DrawFn) -> str:
    """A string that is not a URI; a secret followed by `:/` would be a scheme."""
    head = draw(st.sampled_from(["", "/", "//", " s3://", "\n", ":", "KEY:"]))
    secret = draw(secrets.filter(lambda secret: not LIKE_A_SCHEME.match(secret)))
    if (
        head == " s3://"
    ):  # without its space, which settings are stripped of, s3://a/@b has an @ in the path
        secret = secret.replace("/", "")
    return f"{head}{secret}@{draw(hosts)}"


leaking = st.one_of(
    with_password(),
    with_query(),
    without_scheme(),
    st.sampled_from(
        [
            f"s3:KEY:{SECRET}@b/x",
            f"s3:///KEY:{SECRET}@b/x",
            f"s3://{SECRET}@b/x",
            f"abfs://c@acct?sig={SECRET}/x",
            f"abfs://c@acct/x?sig={SECRET}",
            f"abfss://c@acct.dfs.core.windows.net/x?sv=1&sig={SECRET}",
            f"az://c/x?sig={SECRET}",
            f"s3://KEY:12/{SECRET}@b/x",
            f"file://{SECRET}@b/x",
            f"file://host?{SECRET}/x",
            f"hdfs:///me:{SECRET}@host/x",
        ]
    ),
)


def conf(key: str) -> Callable[[str], object]:
    return lambda uri: Settings.parse({f"spark.holdfast.{key}": uri}).open_storage()


ENTRIES: dict[str, Callable[[str], object]] = {
    "checkpoint_directory": checkpoint_directory,
    "checkpoint_storage": checkpoint_storage,
    "file system storage": FileSystemCheckpointStorage,
    "memory storage": lambda uri: MemoryCheckpointStorage(directory=uri),
    "savepoint directory": lambda uri: (
        FileSystemCheckpointStorage("memory:///a", savepoint_directory=uri)
        .create_checkpoint_storage("job")
        .initialize_location_for_savepoint(1)
    ),
    "file_system_for": file_system_for,
    "use_s3": lambda uri: use_s3(S3Settings(), f"{uri}/"),
    "endpoint of S3": lambda uri: S3Settings(endpoint=uri),
    "use_gcs": lambda uri: use_gcs(GcsSettings(), f"{uri}/"),
    "endpoint of Google Cloud Storage": lambda uri: GcsSettings(endpoint=uri),
    "use_azure": lambda uri: use_azure(AzureSettings(), f"{uri}/"),
    "endpoint of Azure": lambda uri: AzureSettings(endpoint=uri),
    "sweep": lambda uri: sweep(uri, "job"),
    "sweep_savepoints": lambda uri: sweep_savepoints(uri, "job"),
    "latest_checkpoint": lambda uri: latest_checkpoint(uri, "job"),
    "find_checkpoint": find_checkpoint,
    "find_checkpoints": lambda uri: list(find_checkpoints(uri)),
    "load_latest_checkpoint": lambda uri: load_latest_checkpoint(
        FileSystemCheckpointStorage(uri).create_checkpoint_storage("job")
    ),
    "resolve_pointer": resolve_pointer,
    "checkpoint.dir": conf("checkpoint.dir"),
    "savepoint.dir": conf("savepoint.dir"),
    "s3.endpoint": lambda uri: Settings.parse({"spark.holdfast.s3.endpoint": uri}),
    "hadoop's endpoint": lambda uri: Settings.parse(
        {"spark.hadoop.fs.s3a.endpoint": uri, "spark.holdfast.checkpoint.dir": "s3://bucket/a"}
    ),
    "settings of a bucket": lambda uri: Settings.parse(
        {"spark.holdfast.checkpoint.dir": uri, "spark.hadoop.fs.s3a.secret.key": "only-secret"}
    ).open_storage(),
    "take_savepoint": lambda uri: take_savepoint(uri, uri),
    "restore_savepoint": lambda uri: restore_savepoint(uri, "memory:///fork"),
    "restore_savepoint to": lambda uri: restore_savepoint("memory:///nothing", uri),
    "roll_back": lambda uri: roll_back(uri, batch_id=1),
    "preview_rollback": lambda uri: preview_rollback(uri, batch_id=1),
    "rollback_points": rollback_points,
    "data source": lambda uri: StateView.of({"path": uri}),
}


@pytest.mark.parametrize("entry", ENTRIES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(uri=leaking)
def test_no_secret_is_in_an_error_or_its_causes(
    entry: str, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    caplog.set_level(logging.DEBUG)
    try:
        ENTRIES[entry](uri)
    except CheckpointError as error:
        chain: list[BaseException] = [error]
        while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
            chain.append(cause)
        texts = [text for link in chain for text in (str(link), repr(link), repr(link.args))]
        texts_of_error = "\n".join(
            [*texts, error.location, *traceback.format_exception_only(error)]
        )
        assert SECRET not in texts_of_error
    else:
        # A string that is not a password by the rules of URIs is, for example, the name of a bucket.
        assert entry in ("checkpoint.dir", "savepoint.dir", "hadoop's endpoint", "file_system_for")
    assert SECRET not in caplog.text


COMMANDS = [
    ["list", "{}"],
    ["show", "{}"],
    ["verify", "{}", "{}"],
    ["diff", "{}", "{}"],
    ["report", "{}"],
    ["clean", "{}"],
    ["clean", "--savepoint-dir", "{}"],
    ["copy", "{}", "memory:///b"],
    ["savepoint", "{}", "memory:///b"],
    ["restore", "memory:///b", "{}"],
    ["rollback", "{}"],
    ["list", "memory:///b", "{}"],
    ["{}"],
    ["clean", "memory:///b", "--grace={}"],
    ["clean", "memory:///b", "--grace", "{}"],
    ["list", "{}", "--conf", "spark.hadoop.fs.s3a.secret.key=only-secret"],
    ["list", "memory:///b", "--conf", "spark.holdfast.s3.endpoint={}"],
    ["list", "{}", "--conf", "spark.holdfast.azure.sas-token=only-secret"],
    ["list", "memory:///b", "--conf", "spark.holdfast.azure.endpoint={}"],
    ["restore", "memory:///b", "memory:///c", "--checkpoint-dir", "{}"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(uri=leaking)
def test_no_command_prints_a_secret(
    words: list[str], uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main([word.format(uri) for word in words])
    except SystemExit as error:
        status = error.code
    streams = capsys.readouterr()
    assert SECRET not in streams.out + streams.err
    assert status != 0


@given(uri=leaking)
def test_redacted_text_has_no_secret_and_stays_the_same(uri: str) -> None:
    shown = redaction.redact(uri)
    assert SECRET not in shown
    assert redaction.redact(shown) == shown


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3:KEY:SECRET@b/x", "…@b/x"),
        ("s3:///KEY:SECRET@b/x", "s3://…@b/x"),
        ("abfs://c@acct?sig=SECRET/x", "abfs://…@acct?…"),
        ("s3://b/x?sig=SECRET", "s3://b/x?…"),
        ("s3://KEY:SE?CRET@b/x", "s3://…"),
        ("abfs://c@acct/x?sig=SE@CRET", "abfs://…"),
        ("s3://SECRET@b/x", "s3://…@b/x"),
        ("C:\\data", "C:\\data"),
        ("relative/path", "relative/path"),
    ],
)
def test_unparsable_parts_of_a_uri_are_hidden(uri: str, shown: str) -> None:
    assert redaction.redact(uri) == shown
    assert InvalidRequestError("wrong", uri).location == shown


@pytest.mark.parametrize(
    "uri",
    [
        "abfs://container@account.dfs.core.windows.net/a/b",
        "wasbs://container@account/a",
        "sftp://me@host:22/data",
        "hdfs://host:8020/a@b",
        "hdfs:///user/me@corp/a",
        "s3://bucket/day@1/a:b",
        "memory:///a@b",
        "file:/a@b:c?d",
        "file:///a?b=c@d",
        "sftp://[::1]:22/a@b",
        "mine://me@[::1]/a",
    ],
)
def test_well_formed_uris_are_accepted_and_shown_whole(uri: str) -> None:
    assert redaction.redact(uri) == uri
    assert checkpoint_directory(uri).partition(":")[2].lstrip("/") == uri.partition(":")[2].lstrip(
        "/"
    )


def test_paths_of_input_files_have_no_password_in_them() -> None:
    for moved in ({"s3a://KEY:s3cr3t@b": "s3a://b"}, {"s3a://b": "s3a:KEY:s3cr3t@b"}):
        with pytest.raises(InvalidRequestError, match="password in them") as refused:
            Moves(moved)
        assert SECRET not in repr(refused.value)
