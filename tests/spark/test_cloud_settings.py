"""Settings of Google Cloud Storage and Azure Storage, those of Holdfast and of Hadoop."""

from dataclasses import fields

import pytest

from holdfast.errors import InvalidRequestError
from holdfast.locations import AzureSettings, GcsSettings
from holdfast.spark.settings import Settings, cloud_settings_table

SECRET = "the-secret-of-a-test"

HOST = "account.dfs.core.windows.net"

Given = dict[str, str]


def gcs_of(**given: str) -> GcsSettings:
    """Parse settings for the bucket `data.one`, by key without `spark.`."""
    configuration = {f"spark.{key}": value for key, value in given.items()}
    directory = {"spark.holdfast.checkpoint.dir": " GS://data.one//dir "}
    read = Settings.parse(directory | configuration).stores.gcs
    assert list(read) == ["data.one"]
    return read["data.one"]


def azure_of(directory: str = f"abfss://data@{HOST}/dir", **given: str) -> AzureSettings:
    """Parse settings for a container, by key without `spark.`."""
    configuration = {f"spark.{key}": value for key, value in given.items()}
    parsed = Settings.parse({"spark.holdfast.checkpoint.dir": directory} | configuration)
    [settings] = parsed.stores.azure.values()
    return settings


@pytest.mark.parametrize(("kind", "prefix"), [(GcsSettings, "gcs."), (AzureSettings, "azure.")])
def test_fields_are_named_like_the_settings(kind: type, prefix: str) -> None:
    settings = [setting.key for setting in cloud_settings_table()]
    names = {key.removeprefix(prefix) for key in settings if key.startswith(prefix)}
    assert {name.replace("-", "_") for name in names} == {field.name for field in fields(kind)}


def test_every_setting_of_gcs_is_parsed() -> None:
    given = {
        "holdfast.gcs.endpoint": "http://127.0.0.1:1",
        "holdfast.gcs.credentials-file": "/key",
        "holdfast.gcs.anonymous": "FALSE",
        "holdfast.gcs.part-size": "6m",
        "holdfast.gcs.concurrency": "2",
        "holdfast.gcs.connect-timeout": "2m",
        "holdfast.gcs.read-timeout": "90s",
        "holdfast.gcs.ca-bundle": "/ca",
    }
    assert gcs_of(**given) == GcsSettings(
        endpoint="http://127.0.0.1:1",
        credentials_file="/key",
        part_size=6 << 20,
        concurrency=2,
        connect_timeout=120.0,
        read_timeout=90.0,
        ca_bundle="/ca",
    )


def test_every_credential_of_azure_is_parsed() -> None:
    key = {"holdfast.azure.account": "account", "holdfast.azure.secret-key": SECRET}
    assert azure_of(**key) == AzureSettings(account="account", secret_key=SECRET)
    assert azure_of(**{"holdfast.azure.sas-token": f"?{SECRET}"}).sas_token == f"?{SECRET}"
    principal = {"client-id": "id", "client-secret": SECRET, "tenant-id": "tenant"}
    given = {f"holdfast.azure.{name}": value for name, value in principal.items()}
    assert azure_of(**given) == AzureSettings(
        client_id="id", client_secret=SECRET, tenant_id="tenant"
    )
    workload = {"client-id": "id", "federated-token-file": "/token", "tenant-id": "tenant"}
    given = {f"holdfast.azure.{name}": value for name, value in workload.items()}
    assert azure_of(**given) == AzureSettings(
        client_id="id", federated_token_file="/token", tenant_id="tenant"
    )


def test_secrets_are_not_in_the_text_of_settings() -> None:
    for settings in (
        AzureSettings(secret_key=SECRET),
        AzureSettings(sas_token=SECRET),
        AzureSettings(client_id="id", client_secret=SECRET, tenant_id="tenant"),
    ):
        assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"holdfast.gcs.part-size": "1m"}, r"spark\.holdfast\.gcs\.part-size"),
        ({"holdfast.gcs.anonymous": "maybe"}, r"spark\.holdfast\.gcs\.anonymous"),
        ({"holdfast.azure.endpoint": "host"}, r"spark\.holdfast\.azure\.endpoint"),
        ({"holdfast.azure.read-timeout": "0s"}, r"spark\.holdfast\.azure\.read-timeout"),
        (
            {"holdfast.azure.secret-kei": SECRET},
            r"did you mean 'spark\.holdfast\.azure\.secret-key'",
        ),
        (
            {"holdfast.azure.secret-key": SECRET, "holdfast.azure.sas-token": SECRET},
            "secret_key and sas_token exclude each other",
        ),
        ({"holdfast.azure.client-secret": SECRET}, "client_secret requires client_id and"),
        (
            {"holdfast.azure.client-secret": SECRET, "holdfast.azure.client-id": "id"},
            "client_secret requires client_id and tenant_id",
        ),
        ({"holdfast.azure.endpoint": f"http://u:{SECRET}@h"}, "must not contain credentials"),
    ],
)
def test_wrong_setting_is_refused_whatever_the_store(given: Given, message: str) -> None:
    configuration = {f"spark.{key}": value for key, value in given.items()}
    directory = {"spark.holdfast.checkpoint.dir": "file:///x"}
    with pytest.raises(InvalidRequestError, match=message) as caught:
        Settings.parse(directory | configuration)
    assert SECRET not in str(caught.value)


# Hadoop's settings

KEYFILE = "hadoop.fs.gs.auth.service.account.json.keyfile"
OLD_KEYFILE = "hadoop.google.cloud.auth.service.account.json.keyfile"


def test_settings_of_googles_connector_are_used() -> None:
    for key in (KEYFILE, OLD_KEYFILE):
        assert gcs_of(**{key: "/key"}) == GcsSettings(credentials_file="/key")
    emulator = {
        "hadoop.fs.gs.auth.type": "UNAUTHENTICATED",
        "hadoop.fs.gs.storage.root.url": "http://127.0.0.1:1/",
    }
    assert gcs_of(**emulator) == GcsSettings(anonymous=True, endpoint="http://127.0.0.1:1")


def test_own_credentials_of_gcs_exclude_those_of_hadoop() -> None:
    given = {KEYFILE: "/hadoop", "holdfast.gcs.credentials-file": "/own"}
    assert gcs_of(**given) == GcsSettings(credentials_file="/own")
    assert (
        gcs_of(**{KEYFILE: "/hadoop", "hadoop.fs.gs.auth.type": "COMPUTE_ENGINE"}) == GcsSettings()
    )


@pytest.mark.parametrize("key", [f"account.key.{HOST}", "account.key"])
def test_secret_key_of_abfs_is_used(key: str) -> None:
    assert azure_of(**{f"hadoop.fs.azure.{key}": SECRET}) == AzureSettings(secret_key=SECRET)


def test_key_of_another_account_is_not_used() -> None:
    given = {"hadoop.fs.azure.account.key.other.dfs.core.windows.net": SECRET}
    assert azure_of(**given) == AzureSettings()


def test_secret_key_of_abfs_is_used_for_the_account_of_the_settings() -> None:
    given = {f"hadoop.fs.azure.account.key.{HOST}": SECRET, "holdfast.azure.account": "account"}
    assert azure_of("az://data/dir", **given) == AzureSettings(account="account", secret_key=SECRET)


@pytest.mark.parametrize("key", [f"sas.fixed.token.data.{HOST}", "sas.fixed.token"])
def test_sas_token_of_abfs_is_used(key: str) -> None:
    given = {"hadoop.fs.azure.account.auth.type": "SAS", f"hadoop.fs.azure.{key}": SECRET}
    assert azure_of(**given) == AzureSettings(sas_token=SECRET)


@pytest.mark.parametrize(
    ("provider", "read"),
    [
        (
            "ClientCredsTokenProvider",
            AzureSettings(client_id="id", client_secret=SECRET, tenant_id="tenant"),
        ),
        (
            "WorkloadIdentityTokenProvider",
            AzureSettings(client_id="id", federated_token_file="/token", tenant_id="msi-tenant"),
        ),
        ("MsiTokenProvider", AzureSettings(client_id="id")),
        ("AnotherProvider", AzureSettings()),
    ],
)
def test_providers_of_abfs_are_used(provider: str, read: AzureSettings) -> None:
    options = {
        "auth.type": "OAuth",
        "oauth.provider.type": f"org.apache.hadoop.fs.azurebfs.oauth2.{provider}",
        "oauth2.client.id": "id",
        "oauth2.client.secret": SECRET,
        "oauth2.client.endpoint": "https://login.microsoftonline.com/tenant/oauth2/token",
        "oauth2.msi.tenant": "msi-tenant",
        "oauth2.token.file": "/token",
    }
    given = {f"hadoop.fs.azure.account.{key}.{HOST}": value for key, value in options.items()}
    assert azure_of(**given) == read


def test_own_credentials_of_azure_exclude_those_of_hadoop() -> None:
    given = {f"hadoop.fs.azure.account.key.{HOST}": "hadoop", "holdfast.azure.sas-token": SECRET}
    assert azure_of(**given) == AzureSettings(sas_token=SECRET)
