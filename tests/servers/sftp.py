"""A real SFTP server on a loopback port, which can be stopped, started again and made to fail."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import asyncssh
from asyncssh.misc import MaybeAwait
from contracts.patience import HANGS_S

USER = "holdfast"


class SftpServer:
    """Serves one directory to one user, in a separate thread, until its block ends.

    Args:
        root: The directory that clients see as `/`.
        password: Password of `USER`.

    Attributes:
        connections: The open connections.
        port: TCP port; stays the same after `stop` and `start`.
        logins: Number of successful logins so far.
        passwords: Passwords of all attempted logins.
        on_call: Called with "write", "remove" and "rename" before these calls, and with "renamed" after a
            rename, in the server's thread; its errors are sent to the client.
    """

    def __init__(self, root: Path, password: str) -> None:
        self.port = 0
        self.logins = 0
        self.passwords: list[str] = []
        self.on_call: Callable[[str], object] = lambda call: None
        self.root = root
        self.password = password
        self._key = _new_key()
        self.connections: set[asyncssh.SSHServerConnection] = set()
        self._listener: asyncssh.SSHAcceptor | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sftp server")

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def uri(self) -> str:
        """URI of `/`, without the slash."""
        return f"sftp://{USER}@127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        """True if it accepts connections."""
        return self._listener is not None

    @property
    def known_host(self) -> str:
        """The server's line in a `known_hosts` file."""
        return f"[127.0.0.1]:{self.port} {self._key.export_public_key().decode()}"

    def path_of(self, uri: str) -> Path:
        """Return the path of a client's URI."""
        return self.root / uri.removeprefix(f"{self.uri}/")

    def start(self) -> None:
        """Accept connections, on the same port as before."""
        self._run(self._start())

    def stop(self) -> None:
        """Refuse connections, and cut the open ones."""
        self._run(self._stop())

    def change_key(self) -> None:
        """Cut all connections, and identify as another host afterwards."""
        self.stop()
        self._key = _new_key()
        self.start()

    def drop_connections(self) -> None:
        """Cut the open connections without notice."""
        if threading.current_thread() is self._thread:
            self._abort_connections()
        else:
            self._run(self._drop())

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(HANGS_S)

    async def _start(self) -> None:
        self._listener = await asyncssh.listen(
            "127.0.0.1",
            self.port,
            server_factory=lambda: _Login(self),
            server_host_keys=[self._key],
            sftp_factory=lambda channel: _Served(channel, self),
        )
        self.port = self._listener.get_port()

    async def _stop(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
            await listener.wait_closed()
        await self._drop()

    async def _drop(self) -> None:
        dropped = set(self.connections)
        self._abort_connections()
        for connection in dropped:
            await connection.wait_closed()
        # Tasks of these connections end, each with its own errors, before the loop does.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    def _abort_connections(self) -> None:
        for connection in set(self.connections):
            connection.abort()


def _new_key() -> asyncssh.SSHKey:
    return asyncssh.generate_private_key("ssh-ed25519")


class _Login(asyncssh.SSHServer):
    def __init__(self, server: SftpServer) -> None:
        self._server = server

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._server.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self._connection)

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        self._server.passwords.append(password)
        is_valid = (username, password) == (USER, self._server.password)
        self._server.logins += is_valid
        return is_valid


class _Served(asyncssh.SFTPServer):
    def __init__(self, channel: asyncssh.SSHServerChannel[bytes], server: SftpServer) -> None:
        super().__init__(channel, chroot=str(server.root).encode())
        self._server = server

    def write(self, file_obj: object, offset: int, data: bytes) -> MaybeAwait[int]:
        self._server.on_call("write")
        return super().write(file_obj, offset, data)

    def remove(self, path: bytes) -> MaybeAwait[None]:
        self._server.on_call("remove")
        return super().remove(path)

    def rename(self, oldpath: bytes, newpath: bytes) -> MaybeAwait[None]:
        self._server.on_call("rename")
        result = super().rename(oldpath, newpath)
        self._server.on_call("renamed")
        return result
