"""SFTP for checkpoints: known hosts only, timeouts, and distinguishable errors."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import paramiko
from fsspec.implementations.sftp import SFTPFileSystem
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from holdfast.errors import InvalidRequestError

# OpenSSH's own defaults.
_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "~/.ssh/known_hosts")

# Without it, a call to a server that has vanished would never return.
_TIMEOUT_S = 60.0


def _add_known_hosts(keys: paramiko.HostKeys) -> None:
    # paramiko's `load` fails on OpenSSH's lines for authorities and revoked keys.
    for file in _KNOWN_HOSTS:
        with suppress(OSError), open(os.path.expanduser(file), errors="replace") as lines:
            for line in lines:
                with suppress(paramiko.SSHException, InvalidHostKey):
                    entry = HostKeyEntry.from_line(line.strip())
                    for host in entry.hostnames if entry else ():
                        keys.add(host, entry.key.get_name(), entry.key)


class _RefuseUnknown(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]  # no annotations
    def missing_host_key(self, _: Any, hostname: str, key: paramiko.PKey) -> None:
        host, _, port = hostname.removeprefix("[").partition("]:")
        command = f"ssh -p {port} {host}" if port else f"ssh {host}"
        message = (
            f"host key of {host} is not in known_hosts, so it may be an impostor; add it to "
            f"~/.ssh/known_hosts: connect once with `{command}`, compare {key.fingerprint} with "
            "the fingerprint from its administrator, and accept it"
        )
        raise InvalidRequestError(message, kind="connection")


_POLICIES = {
    None: _RefuseUnknown,
    "reject": _RefuseUnknown,
    "auto_add": paramiko.AutoAddPolicy,
    "warning": paramiko.WarningPolicy,
}


class Sftp(SFTPFileSystem):  # type: ignore[misc]  # fsspec has no annotations
    """fsspec's SFTP with these differences.

    - The server's host key must be in OpenSSH's known_hosts; fsspec accepts any key, so an
      impostor would get the password.
    - Renames don't overwrite, and deletions of files don't delete directories.
    - Errors that have a class in Python but no code in SFTP are distinguished from other failures.

    Args:
        host: Name or IPv4 address.
        use_listings_cache: fsspec's common option; ignored, since SFTP has no such cache.
        host_key_policy: Another policy, as in fsspec 2026.9: "auto_add", "warning", or a
            paramiko policy, which decides about every key.
        settings: Arguments of paramiko's `SSHClient.connect`.
    """

    def __init__(
        self,
        host: str,
        *,
        use_listings_cache: bool = False,  # noqa: ARG002  # accepted and ignored
        host_key_policy: Any = None,
        **settings: Any,
    ) -> None:
        self._policy = _POLICIES.get(host_key_policy, host_key_policy)
        if isinstance(self._policy, str):
            known = ", ".join(repr(name) for name in _POLICIES if name)
            message = f"host_key_policy of sftp must be one of {known}, got {self._policy!r}"
            raise InvalidRequestError(message, kind="setting")
        super().__init__(host, **settings)

    def _connect(self) -> None:
        self.client = paramiko.SSHClient()
        self.client.set_missing_host_key_policy(self._policy)
        if self._policy is _RefuseUnknown:
            _add_known_hosts(self.client.get_host_keys())
        try:
            self.client.connect(self.host, **{"timeout": _TIMEOUT_S, **self.ssh_kwargs})
            self.ftp = self.client.open_sftp()
        except BaseException as error:
            self.client.close()
            if not isinstance(error, paramiko.BadHostKeyException):
                raise
            message = (
                f"host key of {self.host} differs from the one in known_hosts, so it may be an "
                "impostor; if its key was changed on purpose, remove the old one (ssh-keygen -R) "
                "and connect once with ssh"
            )
            raise InvalidRequestError(message, kind="connection") from error
        self.ftp.get_channel().settimeout(_TIMEOUT_S)
        # paramiko leaves Nagle's algorithm on, which costs 40 ms for every 32 KiB written
        self.client.get_transport().sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def info(self, path: str) -> dict[str, Any]:
        with self._in_directory(path.rpartition("/")[0]):
            return dict(super().info(path))

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
                raise IsADirectoryError(path) from error
            raise

    def mv(self, old: str, new: str) -> None:
        # Unlike fsspec's, this rename is part of the protocol and refuses to overwrite: OpenSSH
        # makes a link, so one of two concurrent renames fails.
        try:
            self.ftp.rename(old, new)
        except OSError as error:
            if self._is_unclear(error) and self.exists(new):
                raise FileExistsError(new) from error
            raise

    def close_unless_answered(self, error: BaseException | None) -> bool:
        """Close the connection, unless the error was a server's answer on a working one; returns whether it did."""
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
                raise NotADirectoryError(directory) from error
            raise

    def _is_unclear(self, error: BaseException | None) -> bool:
        """Return whether the server has refused a call without a reason, on a working connection."""
        if type(error) is not OSError:
            return False
        channel, transport = self.ftp.get_channel(), self.client.get_transport()
        is_up = transport is not None and transport.is_active()
        return is_up and not (channel.closed or channel.eof_received)
