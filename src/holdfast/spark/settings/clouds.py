"""Settings of Google Cloud Storage and Azure Storage: `spark.holdfast.gcs.*`, `spark.holdfast.azure.*`, and Hadoop's."""

import re
from collections.abc import Callable, Mapping

from holdfast.locations.file_systems import AzureSettings, GcsSettings, ObjectStoreSettings
from holdfast.spark.settings.setting import (
    BOOLEAN,
    ENDPOINT,
    PREFIX,
    Setting,
    SettingType,
    Texts,
    buckets_in,
    declared_settings,
    duration,
    make_section,
    number,
    parse_texts,
    size,
    texts_of,
)

_HADOOP = "spark.hadoop."
_ABFS = f"{_HADOOP}fs.azure."
_DOMAIN = ".core.windows.net"
_GCS_CONNECTOR = (f"{_HADOOP}fs.gs.", f"{_HADOOP}google.cloud.")

_GCS_BUCKET = re.compile(r"gs://([^/@]+)(?:/|\Z)", re.IGNORECASE)
_AZURE_CONTAINER = re.compile(r"(?:az|abfss?)://([^/]+)(?:/|\Z)", re.IGNORECASE)


def _common(cloud: str) -> dict[str, Setting]:
    """Return the declarations of the settings that all clouds have."""
    return {
        "endpoint": Setting(
            f"{cloud}.endpoint", ENDPOINT, "URL of the store; the cloud's if not set."
        ),
        "part_size": Setting(
            f"{cloud}.part-size",
            size(min_bytes=ObjectStoreSettings.MIN_PART_BYTES),
            "Size of the parts of a large file. A file has at most 10,000 parts.",
        ),
        "concurrency": Setting(
            f"{cloud}.concurrency",
            number(min_value=1),
            "Number of parts of one file that are sent at the same time.",
        ),
        "connect_timeout": Setting(
            f"{cloud}.connect-timeout", duration("`5s`"), "How long to wait for a connection."
        ),
        "read_timeout": Setting(
            f"{cloud}.read-timeout",
            duration("`20s`"),
            "How long to send a request, and to wait for the next bytes of its response. Requests are retried for "
            "a minute; one that waits longer is not.",
        ),
        "ca_bundle": Setting(
            f"{cloud}.ca-bundle",
            SettingType("path"),
            "File with the trusted certificates, on driver and executors.",
        ),
    }


_GCS = declared_settings(
    GcsSettings,
    {
        "credentials_file": Setting(
            "gcs.credentials-file",
            SettingType("path"),
            "File with the key of a service account, or with other Google credentials, on driver and executors. By "
            "default Google's usual sources are used: `GOOGLE_APPLICATION_CREDENTIALS`, gcloud's file, or the service "
            "account of the machine or pod.",
        ),
        "anonymous": Setting(
            "gcs.anonymous", BOOLEAN, "Whether requests carry no credentials, for emulators."
        ),
        **_common("gcs"),
    },
    prefix="gcs_",
)
"""By field of `GcsSettings`, in the order of the docs."""

_AZURE = declared_settings(
    AzureSettings,
    {
        "account": Setting(
            "azure.account",
            SettingType("name"),
            "Storage account of locations that do not name it, such as `az://container/path`.",
        ),
        "secret_key": Setting(
            "azure.secret-key",
            SettingType("secret"),
            "Key of the account. By default Azure's usual sources have credentials: the environment, workload "
            "identity, or the managed identity of the machine.",
        ),
        "sas_token": Setting(
            "azure.sas-token", SettingType("secret"), "Shared access signature of the container."
        ),
        "client_id": Setting(
            "azure.client-id",
            SettingType("id"),
            "Service principal, with `client-secret` or `federated-token-file`; without these, a user-assigned "
            "managed identity.",
        ),
        "client_secret": Setting(
            "azure.client-secret", SettingType("secret"), "The secret of `client-id`."
        ),
        "tenant_id": Setting("azure.tenant-id", SettingType("id"), "The tenant of `client-id`."),
        "federated_token_file": Setting(
            "azure.federated-token-file",
            SettingType("path"),
            "File with the token of a workload identity, on driver and executors.",
        ),
        **_common("azure"),
    },
    prefix="azure_",
)
"""By field of `AzureSettings`, in the order of the docs."""

_AZURE_CREDENTIALS = frozenset(_AZURE) & {
    "secret_key",
    "sas_token",
    "client_id",
    "client_secret",
    "tenant_id",
    "federated_token_file",
}
"""Fields that all come from Hadoop's settings, or none."""


def cloud_settings_table() -> list[Setting]:
    return [*_GCS.values(), *_AZURE.values()]


def is_of_clouds(key: str) -> bool:
    return key.startswith((f"{PREFIX}gcs.", f"{PREFIX}azure.", _ABFS, *_GCS_CONNECTOR))


def gcs_settings(configuration: Mapping[str, str], *uris: str | None) -> dict[str, GcsSettings]:
    """Return the settings of the buckets of a query's directories, by bucket; other URIs are ignored.

    Raises:
        InvalidRequestError: A setting is not valid, even if no URI is in Google Cloud Storage.
    """
    own = texts_of(_GCS, configuration)
    _gcs("Google Cloud Storage", own)
    hadoop = _gcs_connector_texts(configuration, own)
    return {
        bucket: _gcs(f"bucket {bucket!r}", hadoop | own) for bucket in buckets_in(_GCS_BUCKET, uris)
    }


def azure_settings(configuration: Mapping[str, str], *uris: str | None) -> dict[str, AzureSettings]:
    """Return the settings of the containers of a query's directories, by container as the URI names it.

    Raises:
        InvalidRequestError: A setting is not valid, even if no URI is in Azure Storage.
    """
    own = texts_of(_AZURE, configuration)
    _azure("Azure Storage", own)
    return {
        container: _azure(
            f"container {container!r}", _abfs_texts(configuration, container, own) | own
        )
        for container in buckets_in(_AZURE_CONTAINER, uris)
    }


def check_cloud_settings(configuration: Mapping[str, str]) -> None:
    """Refuse values that are not valid whatever else is set; settings that they require may come from elsewhere."""
    for settings in (_GCS, _AZURE):
        parse_texts(settings, texts_of(settings, configuration))


def _gcs(subject: str, texts: Texts) -> GcsSettings:
    return make_section(GcsSettings, parse_texts(_GCS, texts), subject, texts)


def _azure(subject: str, texts: Texts) -> AzureSettings:
    return make_section(AzureSettings, parse_texts(_AZURE, texts), subject, texts)


def _gcs_connector_texts(configuration: Mapping[str, str], own: Texts) -> Texts:
    """Return the settings of Google's connector for Hadoop, for the settings that are not set.

    Source:
        GoogleCloudDataproc/hadoop-connectors, gcs/CONFIGURATION.md; the second names are those of its version 2.
    """
    if own.keys() & {"endpoint", "credentials_file", "anonymous"}:
        return {}
    texts: Texts = {}
    kind = configuration.get(f"{_HADOOP}fs.gs.auth.type", "")
    for prefix in _GCS_CONNECTOR:
        key = f"{prefix}auth.service.account.json.keyfile"
        if configuration.get(key) and kind in ("", "SERVICE_ACCOUNT_JSON_KEYFILE"):
            texts["credentials_file"] = (key, configuration[key])
            break
    if kind == "UNAUTHENTICATED":
        texts["anonymous"] = (f"{_HADOOP}fs.gs.auth.type", "true")
    key = f"{_HADOOP}fs.gs.storage.root.url"
    if configuration.get(key):
        texts["endpoint"] = (key, configuration[key].rstrip("/"))
    return texts


def _abfs_texts(configuration: Mapping[str, str], container: str, own: Texts) -> Texts:
    """Return the credentials of Hadoop's ABFS driver for an account, if no credentials are set.

    Source:
        Hadoop, ConfigurationKeys of hadoop-azure: an option with the account's host replaces the general one.
    """
    name, _, host = container.partition("@")
    account = host or own.get("account", ("", ""))[1]
    if "endpoint" in own or own.keys() & _AZURE_CREDENTIALS or not account:
        return {}
    services = ("dfs", "blob")
    hosts = [account] if "." in account else [f"{account}.{each}{_DOMAIN}" for each in services]

    def option(key: str) -> tuple[str, str]:
        for full in [*(f"{_ABFS}{key}.{each}" for each in hosts), _ABFS + key]:
            if configuration.get(full, "").strip():
                return full, configuration[full].strip()
        return "", ""

    match option("account.auth.type")[1] or "SharedKey":
        case "SharedKey":
            texts = {"secret_key": option("account.key")}
        case "SAS":
            fixed = option(f"sas.fixed.token.{name}")
            texts = {"sas_token": fixed if fixed[0] else option("sas.fixed.token")}
        case "OAuth":
            texts = _oauth_texts(option)
        case _:
            texts = {}
    return {field: text for field, text in texts.items() if text[1]}


def _oauth_texts(option: Callable[[str], tuple[str, str]]) -> Texts:
    client_id = option("account.oauth2.client.id")
    match option("account.oauth.provider.type")[1].rpartition(".")[2]:
        case "ClientCredsTokenProvider":
            key, address = option("account.oauth2.client.endpoint")
            # https://login.microsoftonline.com/TENANT/oauth2/token
            tenant = address.partition("://")[2].partition("/")[2].partition("/")[0]
            return {
                "client_id": client_id,
                "client_secret": option("account.oauth2.client.secret"),
                "tenant_id": (key, tenant),
            }
        case "WorkloadIdentityTokenProvider":
            return {
                "client_id": client_id,
                "tenant_id": option("account.oauth2.msi.tenant"),
                "federated_token_file": option("account.oauth2.token.file"),
            }
        case "MsiTokenProvider":
            return {"client_id": client_id}
    return {}
