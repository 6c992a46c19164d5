"""The `spark.holdfast.s3.*` settings, and Hadoop's for the same."""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from holdfast.common import parse_duration_s
from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems import S3Settings
from holdfast.redaction import redact
from holdfast.spark.settings.setting import Setting, boolean, positive, size

_S3A = "spark.hadoop.fs.s3a."

_OLD_NAMES = {
    "encryption.algorithm": "server-side-encryption-algorithm",
    "encryption.key": "server-side-encryption.key",
}

# S3's names, and Hadoop's for the same.
_ENCRYPTIONS = {
    "AES256": "AES256",
    "SSE-S3": "AES256",
    "AWS:KMS": "aws:kms",
    "SSE-KMS": "aws:kms",
}

_NOT_MIXED = (
    frozenset({"access_key", "secret_key", "session_token", "assumed_role"}),
    frozenset({"server_side_encryption", "kms_key"}),
)
"""Fields that are all Hadoop's, or none of them."""

_BUCKET = re.compile(r"(?:fsspec\+)?s3a?://([^/@]+)(?:/|\Z)", re.IGNORECASE)

_Said = dict[str, tuple[str, str]]
"""By field of `S3Settings`: the key that it was set by, and the text."""


def _endpoint(text: str) -> str:
    # An endpoint with a password or query goes on to where it is refused without being shown.
    if not text.startswith(("http://", "https://")) and {"@", "?"}.isdisjoint(text):
        raise ValueError(text)
    return text


def _timeout_s(text: str) -> float:
    seconds = parse_duration_s(text)
    if not seconds:
        raise ValueError(text)
    return seconds


def _encryption(text: str) -> str:
    if text.upper() not in _ENCRYPTIONS:
        raise ValueError(text)
    return _ENCRYPTIONS[text.upper()]


_SETTINGS = (
    Setting(
        key="s3.endpoint",
        kind="URL with http:// or https://",
        meaning="Where the S3 store is; AWS if not set.",
        flink="s3.endpoint",
        s3a="endpoint",
        parse=_endpoint,
    ),
    Setting(
        key="s3.region",
        kind="name",
        meaning="Region of the S3 store.",
        flink="s3.region",
        s3a="endpoint.region",
        parse=str,
    ),
    Setting(
        key="s3.path-style-access",
        kind="`true` or `false`",
        meaning="Whether the bucket stands in the path of requests instead of in the host name, as "
        "most stores other than AWS want it.",
        flink="s3.path.style.access",
        s3a="path.style.access",
        parse=boolean,
        default_text="false",
    ),
    Setting(
        key="s3.access-key",
        kind="name of credentials",
        meaning="Credentials for S3. Where they are not set, boto3 finds them: in the environment, "
        "its files, or the machine's role.",
        flink="s3.access-key",
        s3a="access.key",
        parse=str,
    ),
    Setting(
        key="s3.secret-key",
        kind="secret",
        meaning="The secret of `access-key`.",
        flink="s3.secret-key",
        s3a="secret.key",
        parse=str,
    ),
    Setting(
        key="s3.session-token",
        kind="secret",
        meaning="The token that temporary credentials have beside their key and secret.",
        flink="",
        s3a="session.token",
        parse=str,
    ),
    Setting(
        key="s3.assumed-role",
        kind="ARN",
        meaning="A role to assume with the credentials.",
        flink="",
        s3a="assumed.role.arn",
        parse=str,
    ),
    Setting(
        key="s3.server-side-encryption",
        kind="`AES256` or `aws:kms`",
        meaning="How the store encrypts what is written.",
        flink="s3.sse.type",
        s3a="encryption.algorithm",
        parse=_encryption,
    ),
    Setting(
        key="s3.kms-key",
        kind="ARN or id",
        meaning="The key of `aws:kms`, which it implies.",
        flink="s3.sse.kms.keyId",
        s3a="encryption.key",
        parse=str,
    ),
    Setting(
        key="s3.storage-class",
        kind="name",
        meaning="Storage class of what is written.",
        flink="",
        s3a="create.storage.class",
        parse=str.upper,
    ),
    Setting(
        key="s3.checksum",
        kind="`crc32c`, `crc32` or `off`",
        meaning="What the store is to check uploads by; `off` for stores that know neither. "
        "Holdfast's own checksums are not touched by this.",
        flink="",
        parse=str.lower,
    ),
    Setting(
        key="s3.part-size",
        kind="size, at least 5m",
        meaning="Part of a large file that is sent at a time; grows with the file.",
        flink="s3.upload.min.part.size",
        parse=size,
        default_text="8m",
    ),
    Setting(
        key="s3.concurrency",
        kind="number, at least 1",
        meaning="Parts of one file that are sent at a time.",
        flink="s3.upload.max.concurrent.uploads",
        parse=positive,
    ),
    Setting(
        key="s3.connect-timeout",
        kind="duration such as `5s`, longer than none",
        meaning="How long to wait for a connection.",
        flink="",
        parse=_timeout_s,
        default_text="5s",
        unit="s",
    ),
    Setting(
        key="s3.read-timeout",
        kind="duration such as `20s`, longer than none",
        meaning="How long to wait for the next bytes of an answer. Requests are repeated for a minute; "
        "one that waits longer than that is not.",
        flink="",
        parse=_timeout_s,
        default_text="20s",
        unit="s",
    ),
    Setting(
        key="s3.state-files",
        kind="`auto`, `boto3` or `obstore`",
        meaning="What reads the beginnings of files, and writes files of a single request; `auto` is "
        "obstore where it is installed.",
        flink="",
        parse=str.lower,
    ),
    Setting(
        key="s3.requester-pays",
        kind="`true` or `false`",
        meaning="Whether whoever makes a request pays for it, instead of the bucket's owner.",
        flink="",
        s3a="requester.pays.enabled",
        parse=boolean,
        default_text="false",
    ),
    Setting(
        key="s3.ca-bundle",
        kind="path",
        meaning="File with the certificates to trust, on driver and executors.",
        flink="",
        parse=str,
    ),
)

_ROWS = {setting.key.removeprefix("s3.").replace("-", "_"): setting for setting in _SETTINGS}
"""By field of `S3Settings`, in the order of the docs."""


def s3_settings_table() -> list[tuple[Setting, Any]]:
    """Every setting with its default, in the order of the docs."""
    defaults = {field.name: field.default for field in fields(S3Settings)}
    return [
        (replace(setting, argument=f"s3_{name}"), defaults[name]) for name, setting in _ROWS.items()
    ]


def s3_settings(configuration: Mapping[str, str], *uris: str | None) -> dict[str, S3Settings]:
    """How to reach the buckets of some URIs, by bucket; URIs of other stores don't count.

    Args:
        configuration: Spark's configuration.
        uris: The places where the query keeps anything.

    Raises:
        InvalidRequestError: A value is of another kind, even if no URI is in S3, or some values
            don't go together.
    """
    own = _own(configuration)
    # Not of a URI with a secret, which would be shown as its bucket; it is refused where it is used.
    matches = [_BUCKET.match(uri) for uri in uris if uri and redact(uri) == uri]
    buckets = sorted({matched[1] for matched in matches if matched is not None})
    if not buckets:
        _settings("S3", own)  # tried alone: nothing of Hadoop's makes them go together
    return {
        bucket: _settings(f"bucket {bucket!r}", _from_s3a(configuration, bucket, own) | own)
        for bucket in buckets
    }


def check_s3_values(configuration: Mapping[str, str]) -> None:
    """Refuse values that are wrong whatever else is set; settings that they need may come from elsewhere.

    Raises:
        InvalidRequestError: A value is of another kind.
    """
    own = _own(configuration)
    _values(own)
    _settings(
        "S3", {name: said for name, said in own.items() if name not in set().union(*_NOT_MIXED)}
    )


def _own(configuration: Mapping[str, str]) -> _Said:
    return {
        name: (key, configuration[key])
        for name, setting in _ROWS.items()
        if (key := setting.name) in configuration
    }


def _values(said: _Said) -> dict[str, Any]:
    return {name: _ROWS[name].value(key, text) for name, (key, text) in said.items()}


def _settings(whose: str, said: _Said) -> S3Settings:
    values = _values(said)
    if values.get("server_side_encryption") == "AES256":
        values.pop("kms_key", None)
    elif values.get("kms_key"):
        values["server_side_encryption"] = "aws:kms"
    try:
        return S3Settings(**values)
    except InvalidRequestError as error:
        keys = ", ".join(key for key, _ in said.values())
        message = f"settings of {whose} can't be: {error.args[0]}; set are {keys}"
        raise InvalidRequestError(message) from error


def _from_s3a(configuration: Mapping[str, str], bucket: str, own: _Said) -> _Said:
    """The values of Hadoop's settings of S3A, where ours say nothing.

    Endpoint, credentials and encryption are never mixed of both: each comes whole from ours or from Hadoop's.
    """
    if "endpoint" in own:
        return {}
    ours = {name for names in _NOT_MIXED if names & own.keys() for name in names} | own.keys()
    said: _Said = {}
    for name, setting in _ROWS.items():
        if setting.s3a and name not in ours:
            key, text = _s3a(configuration, bucket, setting.s3a)
            if text:
                said[name] = (key, text)
    _, encryption = said.get("server_side_encryption", ("", ""))
    if _ENCRYPTIONS.get(encryption.upper()) != "aws:kms":
        said.pop("kms_key", None)  # of SSE-C it is the secret itself
    key, endpoint = said.get("endpoint", ("", ""))
    if endpoint and "://" not in endpoint:
        _, secure = _s3a(configuration, bucket, "connection.ssl.enabled")
        scheme = "http" if secure.lower() == "false" else "https"
        said["endpoint"] = (key, f"{scheme}://{endpoint}")
    return said


def _s3a(configuration: Mapping[str, str], bucket: str, option: str) -> tuple[str, str]:
    """The key by which S3A's option is set for a bucket, and its text; both empty if it is not.

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
