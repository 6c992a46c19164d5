"""Credentials and addresses of Google Cloud Storage and Azure, without a network."""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import obstore
import pytest
from contracts.errors import of_kind
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from servers.in_process import serve
from servers.memory_gcs import MemoryGcs
from servers.memory_s3 import Answer

from holdfast.errors import InvalidRequestError, StorageUnavailableError
from holdfast.locations import AzureSettings, GcsSettings
from holdfast.locations.adapters import RetryPolicy
from holdfast.locations.file_systems import AzureFileSystem, ObjectStoreFileSystem
from holdfast.testing import HttpRequest

KEY = "a2V5"

TOKEN = "the-token-of-a-test"


class RecordingGcs:
    """A bucket `b` that records the credentials of requests."""

    def __init__(self) -> None:
        self.store = MemoryGcs()
        self.store.add_bucket("b")
        self.authorizations: list[str | None] = []

    def answer(self, request: HttpRequest, body: bytes) -> Any:
        self.authorizations.append(request.headers.get("authorization"))
        return self.store.answer(request, body)


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[RecordingGcs, str]]:
    """The bucket and its endpoint, in an environment without credentials."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    server = RecordingGcs()
    with serve(server.answer) as endpoint:
        yield server, endpoint


def file_of(path: Path, **content: Any) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def service_account(path: Path) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return file_of(
        path,
        type="service_account",
        client_email="holdfast@project.iam.gserviceaccount.com",
        private_key_id="1",
        private_key=pem.decode(),
    )


@pytest.mark.parametrize("is_default", [True, False])
def test_requests_are_signed_with_the_key_of_a_service_account(
    gcs: tuple[RecordingGcs, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_default: bool,
) -> None:
    server, endpoint = gcs
    file = service_account(tmp_path / "key.json")
    if is_default:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
    settings = GcsSettings(endpoint=endpoint, credentials_file=None if is_default else file)
    obstore.put(settings.open_store("b"), "x", b"1")
    [authorization] = server.authorizations
    assert authorization is not None
    assert authorization.startswith("Bearer ey")  # a signed token


@pytest.fixture
def google_auth(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """google-auth with credentials that it exchanges for a token; returns the files that it has read."""
    files: list[str] = []

    class Credentials:
        token: str | None = None
        expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)

        def refresh(self, _: object) -> None:
            self.token = TOKEN

    def load(path: str, scopes: list[str]) -> tuple[Credentials, None]:
        assert scopes == ["https://www.googleapis.com/auth/devstorage.read_write"]
        files.append(path)
        return Credentials(), None

    modules: dict[str, Any] = {
        "google.auth": ModuleType("google.auth"),
        "google.auth.exceptions": SimpleNamespace(GoogleAuthError=KeyError),
        "google.auth.transport": ModuleType("google.auth.transport"),
        "google.auth.transport.requests": SimpleNamespace(Request=object),
    }
    modules["google.auth"].load_credentials_from_file = load
    modules["google.auth"].exceptions = modules["google.auth.exceptions"]
    google = sys.modules.get("google") or ModuleType("google")
    monkeypatch.setattr(google, "auth", modules["google.auth"], raising=False)
    for name, module in {"google": google, **modules}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return files


@pytest.mark.parametrize("is_default", [True, False])
def test_federated_credentials_are_exchanged_by_google_auth(
    gcs: tuple[RecordingGcs, str],
    google_auth: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_default: bool,
) -> None:
    server, endpoint = gcs
    file = file_of(tmp_path / "federated.json", type="external_account")
    if is_default:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
    settings = GcsSettings(endpoint=endpoint, credentials_file=None if is_default else file)
    store = settings.open_store("b")
    obstore.put(store, "x", b"1")
    obstore.get(store, "x")
    assert server.authorizations == [f"Bearer {TOKEN}"] * 2
    assert google_auth == [file]


def test_federated_credentials_without_google_auth_name_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "google.auth", None)
    file = file_of(tmp_path / "federated.json", type="external_account")
    with pytest.raises(InvalidRequestError, match=r"google-auth\[requests\]"):
        GcsSettings(credentials_file=file).open_store("b")


@pytest.mark.parametrize("content", [None, "no JSON", "[]", "{}"])
def test_file_without_credentials_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "key.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InvalidRequestError, check=of_kind("setting")):
        GcsSettings(credentials_file=str(file)).open_store("b")


def test_anonymous_requests_and_a_file_of_credentials_exclude_each_other() -> None:
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        GcsSettings(anonymous=True, credentials_file="/key")


@pytest.mark.parametrize(
    ("authority", "account", "endpoint"),
    [
        ("c@acct.dfs.core.windows.net", "acct", "https://acct.blob.core.windows.net"),
        ("c@acct.blob.core.windows.net", "acct", "https://acct.blob.core.windows.net"),
        ("c@acct.dfs.core.chinacloudapi.cn", "acct", "https://acct.blob.core.chinacloudapi.cn"),
        ("c@acct", "acct", None),
        ("c", "own", None),
    ],
)
def test_location_names_container_account_and_endpoint(
    authority: str, account: str, endpoint: str | None
) -> None:
    own = "own" if account == "own" else None
    config = AzureSettings(account=own, secret_key=KEY).open_store(authority).config
    assert config["container_name"] == "c"
    assert config["account_name"] == account
    assert config.get("endpoint") == endpoint


def test_endpoint_of_the_settings_has_priority() -> None:
    settings = AzureSettings(secret_key=KEY, endpoint="http://127.0.0.1:1/acct")
    config = settings.open_store("c@acct.dfs.core.windows.net").config
    assert config["endpoint"] == "http://127.0.0.1:1/acct"


def test_location_in_another_account_than_the_settings_is_refused() -> None:
    settings = AzureSettings(account="mine", sas_token="sv=1&sig=x")
    with pytest.raises(InvalidRequestError, match="'theirs', and the settings are for 'mine'"):
        settings.open_store("c@theirs.dfs.core.windows.net")


def test_location_without_an_account_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(InvalidRequestError, match="has no storage account"):
        AzureSettings(secret_key=KEY).open_store("c")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acct")
    AzureSettings(secret_key=KEY).open_store("c")  # obstore reads it


def test_own_credentials_exclude_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    settings = AzureSettings(account="acct", sas_token="?sv=1&sig=x")
    config = settings.open_store("c").config
    assert (config["credential_type"], config["sas_key"]) == ("sas_token", "sv=1&sig=x")


@pytest.mark.parametrize("given", [{"secret_key": "no base64!"}, {"sas_token": "%%%"}])
def test_invalid_secret_is_refused_without_showing_it(given: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        AzureSettings(account="acct", **given).open_store("c")  # type: ignore[arg-type]  # strings
    [secret] = given.values()
    assert secret not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "error"), [(403, InvalidRequestError), (500, StorageUnavailableError)]
)
def test_failure_of_the_token_service_is_reported_as_missing_credentials(
    monkeypatch: pytest.MonkeyPatch, status: int, error: type[Exception]
) -> None:
    with serve(lambda _request, _body: Answer(status, TOKEN.encode())) as identity:
        monkeypatch.setenv("AZURE_MSI_ENDPOINT", identity)
        settings = AzureSettings(account="acct", client_id=f"id-{status}", endpoint=identity)
        file_system = AzureFileSystem(settings, retries=RetryPolicy(deadline_s=0))
        with pytest.raises(error, match="no credentials") as caught:
            file_system.publish("az://c/x", b"1")
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("file_system", "uri", "extra"),
    [
        (ObjectStoreFileSystem(GcsSettings(anonymous=True)), "gs://other/x", "gcs"),
        (AzureFileSystem(AzureSettings(secret_key=KEY)), "az://other@acct/x", "azure"),
    ],
)
def test_missing_obstore_is_reported_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, file_system: ObjectStoreFileSystem, uri: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(InvalidRequestError, match=rf"holdfast\[{extra}\]"):
        file_system.open(uri)


def test_location_without_a_bucket_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="gs://bucket/path"):
        ObjectStoreFileSystem(GcsSettings()).open("gs:///x")
