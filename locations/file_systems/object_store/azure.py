"""`az://`, `abfs://` and `abfss://`: settings of Azure Storage, and directories of its hierarchical namespace."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.file_systems.object_store.file_system import ObjectStoreFileSystem
from holdfast.locations.file_systems.object_store.objects import error_for
from holdfast.locations.file_systems.object_store.settings import ObjectStoreSettings
from holdfast.locations.file_systems.obstore_requests import status_of

# Status of a refused deletion: accounts that can't delete directories at the Blob endpoint, or a directory with files.
# obstore deletes by batches, whose answers have no codes.
_DIRECTORY_IS_KEPT = {400, 409}

_ACCOUNT_VARIABLE = "AZURE_STORAGE_ACCOUNT_NAME"


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSettings(ObjectStoreSettings):
    """Settings to reach Azure Storage. Azure's usual sources provide credentials that are not set.

    These are the environment (`AZURE_STORAGE_ACCOUNT_KEY`, `AZURE_CLIENT_ID` and other variables that obstore reads,
    also those that workload identity sets in pods), and the managed identity of the machine.
    The names are those of the settings `spark.holdfast.azure.*`, with `_` instead of `-`.

    Attributes:
        account: Name of the storage account, for locations that do not name it.
        secret_key: Key of the account. Spark's web UI hides settings whose names have `secret` or `token`.
        sas_token: Shared access signature, with or without `?`.
        client_id: Id of a service principal, with `client_secret` or `federated_token_file`; or of a user-assigned
            managed identity.
        client_secret: Secret of the service principal.
        tenant_id: Tenant of the service principal.
        federated_token_file: File with the token of a workload identity, on driver and executors.
    """

    account: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    sas_token: str | None = field(default=None, repr=False)
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    tenant_id: str | None = None
    federated_token_file: str | None = None

    def __post_init__(self) -> None:
        ObjectStoreSettings.__post_init__(self)
        kinds = ("secret_key", "sas_token", "client_secret", "federated_token_file")
        given = [name for name in kinds if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidRequestError(f"{' and '.join(given)} exclude each other")
        is_principal = self.client_secret is not None or self.federated_token_file is not None
        if is_principal and (self.client_id is None or self.tenant_id is None):
            raise InvalidRequestError(f"{given[0]} requires client_id and tenant_id")
        if self.client_id is not None and (self.secret_key or self.sas_token):
            raise InvalidRequestError(f"{given[0]} and client_id exclude each other")

    def open_store(self, authority: str, **options: Any) -> Any:
        container, account, host = _parse(authority)
        if account and self.account and account != self.account:
            message = f"location is in the storage account {account!r}, and the settings are for {self.account!r}"
            raise InvalidRequestError(message, authority, kind="setting")
        account = account or self.account
        if account is None and not os.environ.get(_ACCOUNT_VARIABLE):
            message = (
                "location has no storage account; write abfss://container@account.dfs.core.windows.net/path, "
                "or set the account"
            )
            raise InvalidRequestError(message, authority, kind="location")
        named = {
            "account_name": account,
            "endpoint": self.endpoint or (f"https://{host}" if host else None),
            **self._credentials(),
        }
        options |= {name: value for name, value in named.items() if value is not None}
        return self.make_store("AzureStore", container, "azure", options)

    def _credentials(self) -> dict[str, Any]:
        """Return obstore's options, which exclude other credentials that the environment has."""
        if self.secret_key is not None:
            return {"credential_type": "access_key", "account_key": self.secret_key}
        if self.sas_token is not None:
            return {"credential_type": "sas_token", "sas_key": self.sas_token.removeprefix("?")}
        if self.client_id is None:
            return {}
        identity = {"client_id": self.client_id, "tenant_id": self.tenant_id}
        if self.client_secret is not None:
            return {
                "credential_type": "client_secret",
                "client_secret": self.client_secret,
            } | identity
        if self.federated_token_file is not None:
            file = {"federated_token_file": self.federated_token_file}
            return {"credential_type": "workload_identity"} | file | identity
        return {"credential_type": "managed_identity"} | identity


def _parse(authority: str) -> tuple[str, str | None, str | None]:
    """Return the container, the account, and the host of the account's Blob endpoint, as far as a URI names them.

    Spark's paths name the host of the account's other endpoint, `dfs`, which obstore does not use.
    """
    container, _, host = authority.partition("@")
    account, _, domain = host.partition(".")
    if not domain:
        return container, account or None, None
    service, _, suffix = domain.partition(".")
    return container, account, f"{account}.blob.{suffix}" if service == "dfs" else host


class AzureFileSystem(ObjectStoreFileSystem):
    """Blobs in Azure Storage.

    In an account with hierarchical namespace, writing a blob also creates its directories, which remain after it
    and are listed. There they are deleted when they are empty. obstore uses the Blob endpoint, where a directory is
    deleted like a blob, and only if it is empty. In other accounts no blob has the name of a directory.

    Source:
        Microsoft, Known issues with Azure Data Lake Storage: "If you use the Delete Blob API to delete a directory, that
        directory is deleted only if it's empty."
    """

    def delete_empty_directory(self, uri: str, /) -> None:
        from obstore import delete  # noqa: PLC0415  # optional

        target = self._object(uri)
        try:
            delete(target.bucket.store, target.key)
        except Exception as error:  # noqa: BLE001  # obstore has many classes
            failure = error_for(error, uri, "delete")
            is_kept = status_of(error) in _DIRECTORY_IS_KEPT
            if not is_kept and not isinstance(failure, CheckpointNotFoundError):
                raise failure from None

    def delete_tree(self, uri: str, /) -> None:
        super().delete_tree(uri)
        for directory in self._directories(uri):
            self.delete_empty_directory(directory)

    def _directories(self, uri: str) -> Iterator[str]:
        """Return the directories that remain in a directory, and that directory, each after those inside it."""
        for entry in self.list(uri):
            if entry.is_directory:
                yield from self._directories(entry.uri)
        yield uri
