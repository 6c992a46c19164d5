"""The HDFS adapter without a cluster: its errors, settings and clients."""

import builtins
import gc
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import hdfs_native
import pytest

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations.adapters import RetryPolicy
from holdfast.locations.file_systems import HdfsFileSystem, hdfs_client

URI = "hdfs://cluster/dir/x"

ONCE = RetryPolicy(deadline_s=0)

HDFS = "org.apache.hadoop.hdfs"


def answer(java_class: str, message: str = "why", *, kind: str = "RPCError") -> RuntimeError:
    """The error that hdfs-native 0.14 raises for an exception of the NameNode."""
    return RuntimeError(f'{kind}("{java_class}", "{message}\\n\\tat org.apache.Some.java(1)\\n")')


@pytest.fixture(autouse=True)
def without_clients() -> Iterator[None]:
    """Drop the clients of other tests before, and those of this test after it."""
    forget_clients()
    yield
    forget_clients()


def forget_clients() -> None:
    for key in list(hdfs_client.CLIENTS.values):
        hdfs_client.CLIENTS.drop(key)


class FakeClient:
    """The part of hdfs-native's client that the adapter uses; all writes end as configured."""

    def __init__(self, url: str | None, config: dict[str, str], events: list[str]) -> None:
        self.url = url
        self.config = config
        self.inner = self
        self.events = events
        self.error: Exception | None = None
        self.error_of_rename: Exception | None = None

    def create(self, path: str, options: Any) -> Any:
        if self.error:
            raise self.error
        return SimpleNamespace(
            write=lambda data: self.events.append(f"write {len(data)}"),
            hsync=lambda: self.events.append("hsync"),
            close=lambda: self.events.append("close"),
        )

    def list_status(self, path: str) -> list[Any]:
        if self.error:
            raise self.error
        return []

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        assert not overwrite
        if self.error_of_rename:
            raise self.error_of_rename

    def delete(self, path: str, *_: bool) -> bool:
        self.events.append(f"delete {path}")
        return True


@pytest.fixture
def events() -> list[str]:
    """The calls that changed files, in order."""
    return []


@pytest.fixture
def fake_clients(monkeypatch: pytest.MonkeyPatch, events: list[str]) -> list[FakeClient]:
    """The clients that the adapter makes."""
    clients: list[FakeClient] = []

    def make(url: str | None, config: dict[str, str]) -> FakeClient:
        clients.append(FakeClient(url, config, events))
        return clients[-1]

    monkeypatch.setattr(hdfs_native, "Client", make)
    return clients


class TestErrors:
    @pytest.mark.parametrize(
        "error",
        [
            PermissionError("permission denied"),
            answer("org.apache.hadoop.security.AccessControlException"),
            answer("org.apache.hadoop.security.authorize.AuthorizationException"),
            RuntimeError('SASLError("no ticket")'),
        ],
    )
    def test_missing_permission_differs_from_a_wrong_argument(self, error: Exception) -> None:
        assert hdfs_client.error_for(error, "hdfs://host/x").kind == "refused"
        assert hdfs_client.error_for(ValueError("invalid path"), "hdfs://host/x").kind == ""

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (FileNotFoundError("File does not exist: /dir/x"), CheckpointNotFoundError),
            (answer("java.io.FileNotFoundException"), CheckpointNotFoundError),
            (answer(f"{HDFS}.server.namenode.LeaseExpiredException"), CheckpointNotFoundError),
            (FileExistsError("/dir/x for client 127.0.0.1 exists"), CheckpointConflictError),
            (answer(f"{HDFS}.protocol.AlreadyBeingCreatedException"), CheckpointConflictError),
            (answer("org.apache.hadoop.fs.FileAlreadyExistsException"), CheckpointConflictError),
            (answer(f"{HDFS}.protocol.NSQuotaExceededException"), StorageFullError),
            (answer(f"{HDFS}.protocol.DSQuotaExceededException"), StorageFullError),
            (answer(f"{HDFS}.protocol.QuotaExceededException"), StorageFullError),
            (PermissionError("permission denied"), InvalidRequestError),
            (answer("org.apache.hadoop.security.AccessControlException"), InvalidRequestError),
            (
                answer("org.apache.hadoop.security.authorize.AuthorizationException"),
                InvalidRequestError,
            ),
            (
                answer(
                    "org.apache.hadoop.security.token.SecretManager$InvalidToken",
                    kind="FatalRPCError",
                ),
                InvalidRequestError,
            ),
            (
                answer(
                    f"{HDFS}.protocol.FSLimitException$PathComponentTooLongException",
                ),
                InvalidRequestError,
            ),
            (answer("org.apache.hadoop.fs.InvalidPathException"), InvalidRequestError),
            (answer("org.apache.hadoop.fs.ParentNotDirectoryException"), InvalidRequestError),
            (NotADirectoryError("/dir"), InvalidRequestError),
            (IsADirectoryError("/dir"), InvalidRequestError),
            (NotImplementedError("erasure coding policy XOR"), InvalidRequestError),
            (ValueError("invalid path"), InvalidRequestError),
            (RuntimeError('SASLError("no ticket")'), InvalidRequestError),
            (RuntimeError('GSSAPIError(GSS_S_NO_CRED, 1, "no creds")'), InvalidRequestError),
            (RuntimeError("NoSASLMechanism"), InvalidRequestError),
            (answer(f"{HDFS}.server.namenode.SafeModeException"), StorageUnavailableError),
            (answer("org.apache.hadoop.ipc.StandbyException"), StorageUnavailableError),
            (answer("org.apache.hadoop.ipc.RetriableException"), StorageUnavailableError),
            (answer("java.io.IOException"), StorageUnavailableError),
            (answer("java.lang.NullPointerException"), StorageUnavailableError),
            (OSError("Connection refused (os error 111)"), StorageUnavailableError),
            (RuntimeError('DataTransferError("All nodes failed")'), StorageUnavailableError),
            (RuntimeError('BlocksNotFound("/dir/x")'), StorageUnavailableError),
            (RuntimeError('OperationFailed("in time")'), StorageUnavailableError),
            (RuntimeError(), StorageUnavailableError),
        ],
        ids=lambda value: repr(value)[-120:] if isinstance(value, Exception) else value.__name__,
    )
    def test_each_error_has_one_class(self, error: Exception, kind: type[CheckpointError]) -> None:
        ours = hdfs_client.error_for(error, URI)
        assert type(ours) is kind
        assert ours.location == URI

    def test_message_has_the_class_and_the_reason_without_the_stack_trace(self) -> None:
        error = answer(
            f"{HDFS}.server.namenode.SafeModeException", 'Cannot create \\"/dir/x\\". It is on.'
        )
        assert str(hdfs_client.error_for(error, URI)) == (
            'HDFS failed (SafeModeException: Cannot create "/dir/x". It is on.): '
            f"location='{URI}' [HF-STORE-FAILED]"
        )

    @pytest.mark.parametrize(
        "error",
        [
            answer("java.io.IOException", "long " * 1000),
            OSError("long " * 1000),
            RuntimeError('RPCError("java.io.IOException", "' + "long " * 1000),
        ],
        ids=["answer", "other", "cut answer"],
    )
    def test_long_text_is_cut(self, error: Exception) -> None:
        text = str(hdfs_client.error_for(error, URI))
        assert "long long" in text
        assert len(text) < 400

    @pytest.mark.parametrize(
        ("error", "java_class"),
        [
            (answer(f"{HDFS}.server.namenode.SafeModeException"), "SafeModeException"),
            (answer("a.b.Outer$Inner", kind="FatalRPCError"), "Outer$Inner"),
            (answer("Bare"), "Bare"),
            (OSError("Connection refused"), ""),
            (RuntimeError('DataTransferError("RPCError(\\"a.B\\", \\"c\\")")'), ""),
            (None, ""),
        ],
    )
    def test_java_class_of_the_name_node_is_found(
        self, error: Exception | None, java_class: str
    ) -> None:
        assert hdfs_client.java_class(error) == java_class

    def test_ours_come_through_and_others_are_chained(self) -> None:
        ours = StorageFullError("full")
        with pytest.raises(StorageFullError) as caught, hdfs_client.map_errors(URI):
            raise ours
        assert caught.value is ours
        theirs = OSError("gone")
        with pytest.raises(StorageUnavailableError, match="gone") as chained:
            with hdfs_client.map_errors(URI):
                raise theirs
        assert chained.value.__cause__ is theirs


class TestRename:
    """The step that makes a file appear."""

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (FileExistsError("/dir/x"), CheckpointConflictError),
            (
                answer(
                    "java.io.IOException", "Source a and destination b must both be directories"
                ),
                CheckpointConflictError,
            ),
            (answer(f"{HDFS}.server.namenode.SafeModeException"), StorageUnavailableError),
            (answer("org.apache.hadoop.ipc.StandbyException"), StorageUnavailableError),
            (OSError("RPC listener disconnected"), OutcomeUnknownError),
            (RuntimeError('InvalidRPCResponse("x")'), OutcomeUnknownError),
        ],
        ids=["taken", "directory", "safe mode", "standby", "lost", "garbled"],
    )
    def test_rename_is_unknown_only_without_an_answer(
        self, error: Exception, kind: type[CheckpointError], fake_clients: list[FakeClient]
    ) -> None:
        file_system = HdfsFileSystem(retries=ONCE)
        list(file_system.list("hdfs://cluster/dir"))
        [client] = fake_clients
        client.error_of_rename = error
        with pytest.raises(kind) as caught:
            file_system.publish(URI, b"1")
        assert type(caught.value) is kind
        assert caught.value.location == URI


class TestClients:
    def test_options_reach_the_client(self, fake_clients: list[FakeClient]) -> None:
        options = {"dfs.client.socket-timeout": "1234", "hadoop.security.authentication": "simple"}
        file_system = HdfsFileSystem(options)
        list(file_system.list("hdfs://cluster/dir"))
        file_system.create(URI).abort()
        assert len(fake_clients) == 2  # one for calls, one for streams
        for client in fake_clients:
            assert client.url == "hdfs://cluster"
            assert client.config.items() >= options.items()

    def test_each_cluster_and_options_have_one_client(self, fake_clients: list[FakeClient]) -> None:
        for options in ({}, {"a": "1"}, {"a": "1"}, {"a": "2"}):
            for uri in ("hdfs://one/dir", "hdfs://one/other", "hdfs://two:8020/", "viewfs://one/"):
                list(HdfsFileSystem(options).list(uri))
        known = [(client.url, client.config.get("a")) for client in fake_clients]
        assert len(known) == len(set(known)) == 9

    def test_client_without_an_authority_is_of_the_default_cluster(
        self, fake_clients: list[FakeClient]
    ) -> None:
        list(HdfsFileSystem().list("hdfs:///dir"))
        assert [client.url for client in fake_clients] == [None]

    def test_settings_refused_by_hdfs_native_are_invalid(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(url: str | None, config: dict[str, str]) -> None:
            raise ValueError("No NameNode hosts found")

        monkeypatch.setattr(hdfs_native, "Client", refuse)
        with pytest.raises(InvalidRequestError, match=r"hosts found.*HADOOP_CONF_DIR") as caught:
            list(HdfsFileSystem().list("hdfs://cluster/dir"))
        assert caught.value.location == "hdfs://cluster/dir"

    def test_missing_package_is_reported_with_the_command(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = builtins.__import__

        def without(name: str, *arguments: Any, **options: Any) -> Any:
            if name == "hdfs_native":
                raise ImportError(name)
            return real(name, *arguments, **options)

        monkeypatch.delitem(sys.modules, "hdfs_native")
        monkeypatch.setattr(builtins, "__import__", without)
        file_system = HdfsFileSystem()
        for attempt in (
            lambda: file_system.list("hdfs://cluster/dir"),
            lambda: file_system.create(URI),
            lambda: file_system.publish(URI, b"1"),
        ):
            with pytest.raises(InvalidRequestError, match=r"pip install 'holdfast\[hdfs\]'"):
                attempt()

    def test_process_forked_after_its_use_is_refused(self, fake_clients: list[FakeClient]) -> None:
        list(HdfsFileSystem().list("hdfs://cluster/dir"))
        child = os.fork()
        if not child:
            refused = False
            try:
                list(HdfsFileSystem().list("hdfs://other/dir"))
            except InvalidRequestError:
                refused = True
            finally:
                os._exit(0 if refused else 1)
        assert os.waitpid(child, 0) == (child, 0)
        list(HdfsFileSystem().list("hdfs://cluster/dir"))
        assert len(fake_clients) == 1


class TestStreams:
    def test_garbage_collected_file_is_deleted_before_it_is_closed(
        self, fake_clients: list[FakeClient], events: list[str]
    ) -> None:
        """Closing completes a file, unless it no longer exists."""
        stream = HdfsFileSystem(retries=ONCE).create(URI)
        stream.write(b"1")
        stream.sync()
        del stream
        gc.collect()
        assert events[:3] == ["write 1", "hsync", "delete /dir/x"]
        assert events[3:] in ([], ["close"])

    def test_file_is_synced_before_it_is_closed(
        self, fake_clients: list[FakeClient], events: list[str]
    ) -> None:
        stream = HdfsFileSystem(retries=ONCE).create(URI)
        stream.write(b"1")
        stream.commit()
        stream.abort()
        del stream
        gc.collect()
        assert events == ["write 1", "hsync", "close"]

    def test_failed_creation_deletes_nothing(
        self, fake_clients: list[FakeClient], events: list[str]
    ) -> None:
        """The existing file is another writer's."""
        file_system = HdfsFileSystem(retries=ONCE)
        file_system.create(URI).abort()
        events.clear()
        for client in fake_clients:
            client.error = FileExistsError("/dir/x")
        with pytest.raises(CheckpointConflictError):
            file_system.create(URI)
        gc.collect()
        assert events == []
