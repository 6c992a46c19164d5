"""SFTP as checkpoints need it: to known hosts only, with an end to silence, clear about refusals."""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import paramiko
from fsspec.implementations.sftp import SFTPFileSystem

from holdfast.errors import InvalidRequestError

# OpenSSH's own defaults.
_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "~/.ssh/known_hosts")

# Without it a server that vanished without a word is waited for forever.
_SILENCE_S = 60.0


class Sftp(SFTPFileSystem):  # type: ignore[misc]  # fsspec has no annotations
    """fsspec's, with these differences.

    - The server's host key must be in OpenSSH's known_hosts, unless `host_key_policy` is set in
      fsspec's configuration; fsspec itself accepts any key, and sends it the password.
    - Renames don't overwrite, deletions of files leave directories.
    - What SFTP has no error code for, but Python has a class, is told from other failures.

    Args:
        host: Name or IPv4 address.
        use_listings_cache: fsspec's option for all; there is no such cache here.
        host_key_policy: What fsspec's class (2026.9 or so and later) does with a host key.
        settings: paramiko's, for `SSHClient.connect`.
    """

    def __init__(
        self,
        host: str,
        *,
        use_listings_cache: bool = False,  # noqa: ARG002
        host_key_policy: Any = None,
        **settings: Any,
    ) -> None:
        # fsspec's "reject" looks into no file, so that it would let nobody in.
        self._needs_known_host = host_key_policy in (None, "reject")
        if not self._needs_known_host:
            settings["host_key_policy"] = host_key_policy
        super().__init__(host, **settings)

    def _connect(self) -> None:
        if self._needs_known_host:
            self._connect_to_known_host()
        else:
            super()._connect()
        self.ftp.get_channel().settimeout(_SILENCE_S)
        # paramiko leaves Nagle's algorithm on: 40 ms for every 32 KiB written
        self.client.get_transport().sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _connect_to_known_host(self) -> None:
        self.client = paramiko.SSHClient()
        for file in _KNOWN_HOSTS:
            with suppress(OSError):  # then its hosts are unknown
                self.client.load_system_host_keys(os.path.expanduser(file))
        self.client.set_missing_host_key_policy(_RefuseUnknown())
        try:
            self.client.connect(self.host, **self.ssh_kwargs)
            self.ftp = self.client.open_sftp()
        except paramiko.BadHostKeyException as error:
            self.client.close()
            message = (
                f"{self.host} has another host key than known_hosts says, so it may be an "
                "impostor; if its key was changed on purpose, replace it there (ssh-keygen -R, "
                "then ssh to it)"
            )
            raise InvalidRequestError(message) from error
        except BaseException:
            self.client.close()
            raise

    def info(self, path: str) -> dict[str, Any]:
        with self._in_directory(path.rpartition("/")[0]):
            found: dict[str, Any] = super().info(path)
            return found

    def ls(self, path: str, detail: bool = False) -> list[Any]:  # noqa: FBT001, FBT002  # theirs
        with self._in_directory(path):
            return list(super().ls(path, detail))

    def islink(self, path: str) -> bool:
        try:
            return stat.S_ISLNK(self.ftp.lstat(path).st_mode)
        except FileNotFoundError:
            return False

    def rm_file(self, path: str) -> None:
        try:
            self.ftp.remove(path)
        except OSError as error:
            if self._is_unclear(error) and self.isdir(path):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from error
            raise

    def mv(self, old: str, new: str) -> None:
        # Unlike fsspec's it is part of the protocol, and refuses to overwrite: OpenSSH makes a
        # link, so that of two that race one fails.
        try:
            self.ftp.rename(old, new)
        except OSError as error:
            if self._is_unclear(error) and self.exists(new):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new) from error
            raise

    def close_unless_answered(self, error: BaseException | None) -> bool:
        """Close the connection unless that error was an answer on a sound one; whether it did."""
        if self._is_unclear(error):
            return False
        with suppress(Exception):
            self.client.close()
        return True

    @contextmanager
    def _in_directory(self, directory: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            is_unclear = self._is_unclear(error) and directory.strip("/")
            if is_unclear and self.info(directory)["type"] != "directory":
                text = os.strerror(errno.ENOTDIR)
                raise NotADirectoryError(errno.ENOTDIR, text, directory) from error
            raise

    def _is_unclear(self, error: BaseException | None) -> bool:
        """Whether the server has refused a call without a reason, on a sound connection."""
        if type(error) is not OSError:
            return False
        channel, transport = self.ftp.get_channel(), self.client.get_transport()
        is_up = transport is not None and transport.is_active()
        return is_up and not (channel.closed or channel.eof_received)


class _RefuseUnknown(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
        host, _, port = hostname.removeprefix("[").partition("]:")
        command = f"ssh -p {port} {host}" if port else f"ssh {host}"
        message = (
            f"nobody here knows the host key of {host}, so it may be an impostor; add it to "
            f"~/.ssh/known_hosts: connect once with `{command}`, compare {key.fingerprint} with "
            "what its administrator says, and accept it"
        )
        raise InvalidRequestError(message)
