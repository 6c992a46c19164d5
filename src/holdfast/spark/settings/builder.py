"""`configure`: settings as arguments, for a session's builder."""

from typing import Literal, TypedDict, Unpack

from pyspark.sql import SparkSession

from holdfast.errors import InvalidRequestError
from holdfast.spark.settings.setting import LIST_HINT, Setting, nearest
from holdfast.spark.settings.settings import check_settings, settings_table


class SettingArguments(TypedDict, total=False):
    """The arguments of `configure`; the table of settings has their meaning."""

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
    rocksdb_memory_bytes: int | str | None
    rocksdb_write_buffer_ratio: float | None
    rocksdb_bloom_bits: int | None
    rocksdb_block_bytes: int | str | None
    rocksdb_compaction_style: Literal["level", "universal"] | None
    rocksdb_compression: Literal["none", "lz4", "zstd", "snappy"] | None
    rocksdb_transfer_threads: int | None
    rocksdb_has_metrics: bool | None
    local_recovery: Literal["auto", "true", "false"] | bool | None
    local_recovery_bytes: int | str | None
    state_prefetch: bool | None
    task_locality: bool | None
    worker_memory: int | str | None
    job_id: str | None
    metrics_ports: int | str | None
    metrics_address: str | None
    metrics_textfile: str | None
    metrics_pushgateway: str | None
    metrics_otlp_endpoint: str | None
    metrics_spans_endpoint: str | None
    metrics_interval_s: float | str | None
    metrics_has_subtasks: bool | None
    metrics_log_format: Literal["text", "json"] | None
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
    gcs_credentials_file: str | None
    gcs_anonymous: bool | None
    gcs_endpoint: str | None
    gcs_part_size: int | str | None
    gcs_concurrency: int | None
    gcs_connect_timeout: float | str | None
    gcs_read_timeout: float | str | None
    gcs_ca_bundle: str | None
    azure_account: str | None
    azure_secret_key: str | None
    azure_sas_token: str | None
    azure_client_id: str | None
    azure_client_secret: str | None
    azure_tenant_id: str | None
    azure_federated_token_file: str | None
    azure_endpoint: str | None
    azure_part_size: int | str | None
    azure_concurrency: int | None
    azure_connect_timeout: float | str | None
    azure_read_timeout: float | str | None
    azure_ca_bundle: str | None


def configure(
    builder: SparkSession.Builder, **settings: Unpack[SettingArguments]
) -> SparkSession.Builder:
    """Set Holdfast's settings on the builder of a session.

        spark = configure(SparkSession.builder, checkpoint_dir="s3://bucket/holdfast").getOrCreate()

    Every setting is an argument, listed in docs/settings.md. Its value is a number, a boolean or
    a text as in `spark-defaults.conf`: a size in bytes or with a unit, such as `64k`, a
    duration in seconds or with a unit, such as `24h`. Settings that are left out, or None, are not changed.

    The builder's settings override `--conf`, and these override `spark-defaults.conf`; of two calls on a
    builder, of this function or `config`, the later wins. All values are checked before any is set.

    Args:
        builder: `SparkSession.builder`, also one for Spark Connect.
        settings: Values by argument.

    Returns:
        The builder.

    Raises:
        InvalidRequestError: `builder` is not a builder, a setting doesn't exist, or a value of this
            call or an earlier one is not valid.
    """
    if not isinstance(builder, SparkSession.Builder):
        raise InvalidRequestError(
            f"the builder is of type {type(builder).__name__}; pass SparkSession.builder, before "
            "getOrCreate"
        )
    known = {setting.argument: setting for setting in settings_table()}
    given: dict[str, str] = {}
    for name, value in settings.items():
        if name not in known:
            similar = nearest(name, known)
            suggestion = LIST_HINT if similar is None else f"did you mean {similar!r}?"
            raise InvalidRequestError(f"no setting {name!r}; {suggestion}", kind="setting")
        if value is not None:
            given[known[name].name] = _text(known[name], value)
    check_settings({key: str(value) for key, value in builder._options.items()} | given)
    for key, text in given.items():
        builder.config(key, text)
    return builder


def _text(setting: Setting, value: object) -> str:
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int():
            return f"{value}{setting.type.unit}"
        case float() if value.is_integer():
            return f"{int(value)}{setting.type.unit}"
        case float() if not setting.type.unit:
            return str(value)
        case _:  # only its type: a value may be a secret
            raise InvalidRequestError(
                f"{setting.argument} must be {setting.requirement}, got a {type(value).__name__}"
            )
