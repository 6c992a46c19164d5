"""`gs://`: settings and credentials of Google Cloud Storage."""

import json
import os
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems.object_store.settings import ObjectStoreSettings

# obstore's option for a file, by the type of its credentials.
_OPTIONS = {
    "": "application_credentials",
    "authorized_user": "application_credentials",
    "service_account": "service_account",
}

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"

_UNUSED_CREDENTIALS = {
    "type": "authorized_user",
    "client_id": "unused",
    "client_secret": "unused",
    "refresh_token": "unused",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsSettings(ObjectStoreSettings):
    """Settings to reach Google Cloud Storage. Google's usual sources provide credentials that are not set.

    These are the environment (`GOOGLE_APPLICATION_CREDENTIALS` and other variables that obstore reads), the file that
    `gcloud auth application-default login` writes, and the service account of the machine or pod.
    The names are those of the settings `spark.holdfast.gcs.*`, with `_` instead of `-`.

    Attributes:
        credentials_file: File with the key of a service account, or with other credentials of Google such as
            `external_account`; on driver and executors.
        anonymous: Whether requests carry no credentials, for emulators.
    """

    credentials_file: str | None = None
    anonymous: bool = False

    def __post_init__(self) -> None:
        ObjectStoreSettings.__post_init__(self)
        if self.anonymous and self.credentials_file is not None:
            raise InvalidRequestError("anonymous and credentials_file exclude each other")

    def open_store(self, authority: str, **options: Any) -> Any:
        if self.endpoint is not None:
            options["base_url"] = self.endpoint
        if self.anonymous:
            # Without signatures obstore reads, but requests a token before it writes.
            options["skip_signature"] = True
            options["credential_provider"] = _no_token
            return self.make_store("GCSStore", authority, "gcs", options)
        path = Path(self.credentials_file or _default_file())
        kind = _type_of(path, must_exist=self.credentials_file is not None)
        if kind in _OPTIONS:
            if self.credentials_file is not None:
                options[_OPTIONS[kind]] = self.credentials_file
            return self.make_store("GCSStore", authority, "gcs", options)
        # obstore reads the default credentials even if it gets a provider, and refuses a type that it does not know.
        with NamedTemporaryFile("w", prefix="holdfast-", suffix=".json") as unused:
            json.dump(_UNUSED_CREDENTIALS, unused)
            unused.flush()
            options["application_credentials"] = unused.name
            options["credential_provider"] = GoogleAuth(path)
            return self.make_store("GCSStore", authority, "gcs", options)


def _type_of(path: Path, *, must_exist: bool) -> str:
    """Return the type of the credentials in a file; an empty string without a readable file."""
    try:
        return str(json.loads(path.read_text())["type"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        if not must_exist:
            return ""  # obstore finds others, or reports the file
        message = (
            f"credentials_file is not a JSON file of Google credentials ({type(error).__name__})"
        )
        raise InvalidRequestError(message, os.fspath(path), kind="setting") from None


def _default_file() -> str:
    """Return the file of the default credentials, which may not exist."""
    named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if named:
        return named
    directory = os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud"
    return os.fspath(Path(directory) / "application_default_credentials.json")


def _no_token() -> dict[str, Any]:
    return {"token": "", "expires_at": None}


class GoogleAuth:
    """Credentials through google-auth, for types that obstore does not know, such as `external_account`.

    obstore requests new ones before they expire.
    """

    def __init__(self, path: Path) -> None:
        try:
            import google.auth  # noqa: PLC0415  # optional
            from google.auth.transport.requests import Request  # noqa: PLC0415  # optional
        except ImportError as error:
            message = "this type of Google credentials needs google-auth: pip install 'google-auth[requests]'"
            raise InvalidRequestError(message, os.fspath(path), kind="missing-package") from error
        self._request = Request()
        try:
            self._credentials, _ = google.auth.load_credentials_from_file(
                os.fspath(path), scopes=[_SCOPE]
            )
        except google.auth.exceptions.GoogleAuthError as error:
            message = f"google-auth can't use the file of credentials ({type(error).__name__})"
            raise InvalidRequestError(message, os.fspath(path), kind="setting") from None

    def __call__(self) -> dict[str, Any]:
        self._credentials.refresh(self._request)
        return {
            "token": self._credentials.token,
            "expires_at": self._credentials.expiry.replace(tzinfo=UTC),
        }
