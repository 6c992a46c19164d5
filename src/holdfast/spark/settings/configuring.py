"""`configure`: sets on a session's builder what Holdfast needs."""

import difflib
from typing import Literal, TypedDict, Unpack

from pyspark.sql import SparkSession

from holdfast.errors import InvalidRequestError
from holdfast.spark.settings.setting import PREFIX, Setting
from holdfast.spark.settings.table import check_settings, settings_table


class SettingArguments(TypedDict, total=False):
    """The arguments of `configure`; the table of settings says what they mean."""

    checkpoint_dir: str | None
    checkpoint_storage: Literal["filesystem", "memory"] | None
    savepoint_dir: str | None
    savepoint_path: str | None
    claim_mode: Literal["no-claim", "claim"] | None
    num_retained: int | None
    single_writer: bool | None
    allow_non_restored_state: bool | None
    orphan_grace_s: float | str | None
    inline_threshold: int | str | None
    compression: Literal["none", "lz4", "zstd"] | None
    state_backend: str | None
    rocksdb_memory: int | str | None
    rocksdb_write_buffer_ratio: float | None
    rocksdb_bloom_bits: int | None
    rocksdb_block_size: int | str | None
    rocksdb_compaction_style: Literal["level", "universal"] | None
    rocksdb_compression: Literal["none", "lz4", "zstd", "snappy"] | None
    rocksdb_transfer_threads: int | None
    rocksdb_metrics: bool | None
    local_recovery: Literal["auto", "true", "false"] | bool | None
    local_recovery_bytes: int | str | None
    worker_memory: int | str | None
    job_id: str | None
    s3_endpoint: str | None
    s3_region: str | None
    s3_path_style_access: bool | None
    s3_access_key: str | None
    s3_secret_key: str | None
    s3_session_token: str | None
    s3_assumed_role: str | None
    s3_server_side_encryption: Literal["AES256", "aws:kms"] | None
    s3_kms_key: str | None
    s3_storage_class: str | None
    s3_checksum: Literal["crc32c", "crc32", "off"] | None
    s3_part_size: int | str | None
    s3_concurrency: int | None
    s3_connect_timeout: float | str | None
    s3_read_timeout: float | str | None
    s3_state_files: Literal["auto", "boto3", "obstore"] | None
    s3_requester_pays: bool | None
    s3_ca_bundle: str | None


def configure(
    builder: SparkSession.Builder, **settings: Unpack[SettingArguments]
) -> SparkSession.Builder:
    """Set on a builder what a session with Holdfast needs.

        spark = configure(SparkSession.builder, checkpoint_dir="s3://bucket/holdfast").getOrCreate()

    Every setting is an argument, named in docs/settings.md. Its value is a number, a truth value or
    the text that one would write into `spark-defaults.conf`: a size is in bytes or such as `64k`, a
    duration in seconds or such as `24h`. A setting that is None, or not given, stays as it is.

    The builder's settings win over `--conf`, and these over `spark-defaults.conf`; of two calls on a
    builder, be it of this function or `config`, the later wins. All values are checked before any is set.

    Args:
        builder: `SparkSession.builder`, also one for Spark Connect.
        settings: Values by argument.

    Returns:
        The builder.

    Raises:
        InvalidRequestError: `builder` is no builder, there is no such setting, or a value of this
            call or an earlier one is of another kind.
    """
    if not isinstance(builder, SparkSession.Builder):
        message = (
            f"the builder is of type {type(builder).__name__}; pass SparkSession.builder, before "
            "getOrCreate"
        )
        raise InvalidRequestError(message)
    known = {setting.argument: setting for setting, _ in settings_table()}
    given: dict[str, str] = {}
    for name, value in settings.items():
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise InvalidRequestError(f"no setting {name!r}; did you mean {nearest!r}?")
        if value is not None:
            given[PREFIX + known[name].key] = _text(known[name], value)
    check_settings({key: str(value) for key, value in builder._options.items()} | given)
    for key, text in given.items():
        builder.config(key, text)
    return builder


def _text(setting: Setting, value: object) -> str:
    """A value as one would write it into `spark-defaults.conf`."""
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int():
            return f"{value}{setting.unit}"
        case float() if value.is_integer():
            return f"{int(value)}{setting.unit}"
        case float() if not setting.unit:
            return str(value)
        case _:  # its type alone: a value may be a secret
            message = (
                f"{setting.argument} is of type {type(value).__name__}; it must be a {setting.kind}"
            )
            raise InvalidRequestError(message)
