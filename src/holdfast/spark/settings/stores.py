"""Settings of a query's stores: `spark.holdfast.s3.*`, Hadoop's for S3 and HDFS, and those of the other clouds."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.locations.file_systems import (
    AzureSettings,
    GcsSettings,
    S3Settings,
    use_azure,
    use_gcs,
    use_hdfs,
    use_s3,
)
from holdfast.spark.settings.clouds import (
    azure_settings,
    check_cloud_settings,
    cloud_settings_table,
    gcs_settings,
    is_of_clouds,
)
from holdfast.spark.settings.setting import (
    BOOLEAN,
    ENDPOINT,
    PREFIX,
    Setting,
    SettingType,
    Texts,
    buckets_in,
    choice,
    declared_settings,
    duration,
    make_section,
    number,
    parse_texts,
    size,
    texts_of,
)

_HADOOP = "spark.hadoop."
_S3A = f"{_HADOOP}fs.s3a."

_HDFS_OPTIONS = ("dfs.", "fs.defaultFS", "fs.viewfs.", "hadoop.security.authentication")
"""Prefixes of the options that an HDFS client uses."""

_OLD_NAMES = {
    "encryption.algorithm": "server-side-encryption-algorithm",
    "encryption.key": "server-side-encryption.key",
}

_NOT_MIXED = (
    frozenset({"access_key", "secret_key", "session_token", "assumed_role"}),
    frozenset({"server_side_encryption", "kms_key"}),
)
"""Groups of fields that all come from Hadoop's settings, or none."""

_BUCKET = re.compile(r"(?:fsspec\+)?s3a?://([^/@]+)(?:/|\Z)", re.IGNORECASE)

_ENCRYPTION = choice("AES256", "aws:kms", aliases={"sse-s3": "AES256", "sse-kms": "aws:kms"})


_S3: dict[str, Setting] = declared_settings(
    S3Settings,
    {
        "endpoint": Setting(
            "s3.endpoint",
            ENDPOINT,
            "URL of the S3 store; AWS if not set.",
            flink="s3.endpoint",
            s3a="endpoint",
        ),
        "region": Setting(
            "s3.region",
            SettingType("name"),
            "Region of the S3 store.",
            flink="s3.region",
            s3a="endpoint.region",
        ),
        "path_style_access": Setting(
            "s3.path-style-access",
            BOOLEAN,
            "Whether the bucket is in the path of requests instead of the host name. Most "
            "stores other than AWS need this.",
            flink="s3.path.style.access",
            s3a="path.style.access",
        ),
        "access_key": Setting(
            "s3.access-key",
            SettingType("name of credentials"),
            "Credentials for S3. By default boto3 finds them: in the environment, "
            "its files, or the machine's role.",
            flink="s3.access-key",
            s3a="access.key",
        ),
        "secret_key": Setting(
            "s3.secret-key",
            SettingType("secret"),
            "The secret of `access-key`.",
            flink="s3.secret-key",
            s3a="secret.key",
        ),
        "session_token": Setting(
            "s3.session-token",
            SettingType("secret"),
            "The token of temporary credentials.",
            s3a="session.token",
        ),
        "assumed_role": Setting(
            "s3.assumed-role",
            SettingType("ARN"),
            "A role to assume with the credentials.",
            s3a="assumed.role.arn",
        ),
        "server_side_encryption": Setting(
            "s3.server-side-encryption",
            _ENCRYPTION,
            "Server-side encryption of new objects.",
            flink="s3.sse.type",
            s3a="encryption.algorithm",
        ),
        "kms_key": Setting(
            "s3.kms-key",
            SettingType("ARN or id"),
            "The key for `aws:kms`, which it implies.",
            flink="s3.sse.kms.keyId",
            s3a="encryption.key",
        ),
        "storage_class": Setting(
            "s3.storage-class",
            SettingType("name", str.upper),
            "Storage class of new objects.",
            s3a="create.storage.class",
        ),
        "checksum": Setting(
            "s3.checksum",
            choice("crc32c", "crc32", "off"),
            "Checksum that the store verifies uploads with; `off` for stores that support neither. "
            "Holdfast's own checksums are independent of it.",
        ),
        "part_size": Setting(
            "s3.part-size",
            size(min_bytes=S3Settings.MIN_PART_BYTES),
            "Size of the parts of a large file; grows with the file.",
            flink="s3.upload.min.part.size",
        ),
        "concurrency": Setting(
            "s3.concurrency",
            number(min_value=1),
            "Number of parts of one file that are sent at the same time.",
            flink="s3.upload.max.concurrent.uploads",
        ),
        "connect_timeout": Setting(
            "s3.connect-timeout", duration("`5s`"), "How long to wait for a connection."
        ),
        "read_timeout": Setting(
            "s3.read-timeout",
            duration("`20s`"),
            "How long to wait for the next bytes of a response. Requests are retried for a minute; "
            "one that waits longer is not.",
        ),
        "state_files": Setting(
            "s3.state-files",
            choice("auto", "boto3", "obstore"),
            "Library that reads the heads of files, and writes files of a single request; `auto` is "
            "obstore if it is installed.",
        ),
        "requester_pays": Setting(
            "s3.requester-pays",
            BOOLEAN,
            "Whether the requester pays for requests, instead of the bucket's owner.",
            s3a="requester.pays.enabled",
        ),
        "ca_bundle": Setting(
            "s3.ca-bundle",
            SettingType("path"),
            "File with the trusted certificates, on driver and executors.",
        ),
    },
    prefix="s3_",
)
"""By field of `S3Settings`, in the order of the docs."""


def s3_settings_table() -> list[Setting]:
    return list(_S3.values())


def store_settings_table() -> list[Setting]:
    """Return the settings of all stores, in the order of the docs."""
    return s3_settings_table() + cloud_settings_table()


def is_of_stores(key: str) -> bool:
    hdfs_options = tuple(_HADOOP + option for option in _HDFS_OPTIONS)
    return is_of_clouds(key) or key.startswith((f"{PREFIX}s3.", _S3A, *hdfs_options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Settings of a query's stores by bucket or container, and options of HDFS, which override those in Hadoop's files.

    They are values only, so that they compare and pickle.
    """

    s3: Mapping[str, S3Settings] = field(default_factory=dict)
    gcs: Mapping[str, GcsSettings] = field(default_factory=dict)
    azure: Mapping[str, AzureSettings] = field(default_factory=dict)
    hdfs: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, configuration: Mapping[str, str], *uris: str | None) -> "Stores":
        """Read the settings of some URIs' stores from Spark's configuration. Raises `InvalidRequestError`."""
        is_hdfs = any((uri or "").lower().startswith(("hdfs:", "viewfs:")) for uri in uris)
        hadoop = {
            key.removeprefix(_HADOOP): text
            for key, text in configuration.items()
            if key.startswith(_HADOOP)
        }
        hdfs = {key: text for key, text in hadoop.items() if key.startswith(_HDFS_OPTIONS)}
        return cls(
            s3=s3_settings(configuration, *uris),
            gcs=gcs_settings(configuration, *uris),
            azure=azure_settings(configuration, *uris),
            hdfs=hdfs if is_hdfs else {},
        )

    def use(self) -> None:
        for bucket, settings in self.s3.items():
            use_s3(settings, bucket)
        for bucket, google in self.gcs.items():
            use_gcs(google, bucket)
        for container, azure in self.azure.items():
            use_azure(azure, container)
        if self.hdfs:
            use_hdfs(self.hdfs)


def s3_settings(configuration: Mapping[str, str], *uris: str | None) -> dict[str, S3Settings]:
    """Return the settings of the buckets of a query's directories, by bucket; other URIs are ignored.

    Raises:
        InvalidRequestError: A setting is not valid, even if no URI is in S3, or some contradict each other.
    """
    own = texts_of(_S3, configuration)
    buckets = buckets_in(_BUCKET, uris)
    if not buckets:
        _settings("S3", own)  # they must be valid without Hadoop's settings
    return {
        bucket: _settings(f"bucket {bucket!r}", _s3a_texts(configuration, bucket, own) | own)
        for bucket in buckets
    }


def check_store_settings(configuration: Mapping[str, str]) -> None:
    """Refuse values that are not valid whatever else is set; settings that they require may come from elsewhere."""
    own = texts_of(_S3, configuration)
    parse_texts(_S3, own)
    groups: frozenset[str] = frozenset().union(*_NOT_MIXED)
    _settings("S3", {name: text for name, text in own.items() if name not in groups})
    check_cloud_settings(configuration)


def _settings(subject: str, texts: Texts) -> S3Settings:
    values = parse_texts(_S3, texts)
    if values.get("server_side_encryption") == "AES256":
        values.pop("kms_key", None)
    elif values.get("kms_key"):
        values["server_side_encryption"] = "aws:kms"
    return make_section(S3Settings, values, subject, texts)


def _s3a_texts(configuration: Mapping[str, str], bucket: str, own: Texts) -> Texts:
    """Return Hadoop's S3A settings for the settings that are not set.

    Endpoint, credentials and encryption are never mixed: each group is either Holdfast's or Hadoop's.
    """
    if "endpoint" in own:
        return {}
    groups = [group for group in _NOT_MIXED if group & own.keys()]
    excluded = own.keys() | frozenset().union(*groups)
    texts: Texts = {}
    for name, setting in _S3.items():
        if setting.s3a and name not in excluded:
            key, text = _s3a(configuration, bucket, setting.s3a)
            if text:
                texts[name] = (key, text)
    _, encryption = texts.get("server_side_encryption", ("", ""))
    if encryption.lower() not in ("aws:kms", "sse-kms"):
        texts.pop("kms_key", None)  # for SSE-C it is the secret itself
    key, endpoint = texts.get("endpoint", ("", ""))
    if endpoint and "://" not in endpoint:
        _, secure = _s3a(configuration, bucket, "connection.ssl.enabled")
        scheme = "http" if secure.lower() == "false" else "https"
        texts["endpoint"] = (key, f"{scheme}://{endpoint}")
    return texts


def _s3a(configuration: Mapping[str, str], bucket: str, option: str) -> tuple[str, str]:
    """Return the key of S3A's option that is set for a bucket, and its text; both empty if none is set.

    Source:
        Hadoop, S3AUtils.propagateBucketOptions: an option of the bucket replaces the general one,
        even if it is empty. S3AUtils.buildEncryptionSecrets: the bucket's new name, its old one,
        then the general ones.
    """
    names = (option, _OLD_NAMES[option]) if option in _OLD_NAMES else (option,)
    for prefix in (f"{_S3A}bucket.{bucket}.", _S3A):
        for name in names:
            if (key := prefix + name) in configuration:
                return key, configuration[key].strip()
    return "", ""
