"""Commands on checkpoints in Google Cloud Storage and Azure, reached by the environment or by options."""

import json
from collections.abc import Iterator

import pytest
from jobs.stores import write_checkpoint
from servers.clouds import CloudBucket, azurite, cloud_bucket, memory_gcs

from holdfast.cli.command_line import main
from holdfast.locations import AzureSettings, GcsSettings, use_azure, use_gcs
from holdfast.locations.adapters import unregister_file_system

__all__ = ["azurite", "cloud_bucket", "memory_gcs"]


@pytest.fixture
def directory(cloud_bucket: CloudBucket) -> Iterator[str]:
    """A directory with a checkpoint. This process no longer has settings for it."""
    uri = f"{cloud_bucket.uri}/data"
    match cloud_bucket.server.settings:
        case GcsSettings() as google:
            use_gcs(google)
        case AzureSettings() as azure:
            use_azure(azure)
    write_checkpoint(uri, 2)
    unregister_file_system(cloud_bucket.server.scheme)
    yield uri
    unregister_file_system(cloud_bucket.server.scheme)


def listed_checkpoints(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[int]:
    assert main(["list", *arguments, "--json"]) == 0
    return [row["checkpoint"] for row in json.loads(capsys.readouterr().out)]


def test_environment_leads_to_the_store(
    cloud_bucket: CloudBucket,
    directory: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = cloud_bucket.server.settings
    if isinstance(settings, AzureSettings):
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", settings.endpoint or "")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", settings.account or "")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", settings.secret_key or "")
    else:
        monkeypatch.setenv("GOOGLE_BASE_URL", settings.endpoint or "")
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "token")
    assert listed_checkpoints(capsys, directory) == [2]
    assert main(["verify", "--all", directory]) == 0


def test_settings_lead_to_the_store(
    cloud_bucket: CloudBucket, directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = cloud_bucket.server.settings
    if isinstance(settings, AzureSettings):
        values = {
            "azure.endpoint": settings.endpoint,
            "azure.account": settings.account,
            "azure.secret-key": settings.secret_key,
        }
    else:
        values = {"gcs.endpoint": settings.endpoint, "gcs.anonymous": "true"}
    options = [f"--conf=spark.holdfast.{key}={value}" for key, value in values.items()]
    assert listed_checkpoints(capsys, directory, *options) == [2]
