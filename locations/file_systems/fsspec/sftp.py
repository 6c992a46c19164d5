"""SFTP as checkpoints need it: to known hosts only, with an end to silence, clear about refusals."""

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

# Without it a server that vanished without a word is waited for forever.
_SILENCE_S = 60.0


def _add_known_hosts(keys: paramiko.HostKeys) -> None:
    # Not by its own `load`, which fails at OpenSSH's lines for authorities and revoked keys.
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
            f"nobody here knows the host key of {host}, so it may be an impostor; add it to "
            f"~/.ssh/known_hosts: connect once with `{command}`, compare {key.fingerprint} with "
            "what its administrator says, and accept it"
        )
        raise InvalidRequestError(message)


_POLICIES = {
    None: _RefuseUnknown,
    "reject": _RefuseUnknown,
    "auto_add": paramiko.AutoAddPolicy,
    "warning": paramiko.WarningPolicy,
}


class Sftp(SFTPFileSystem):  # type: ignore[misc]  # fsspec has no annotations
    """SFTP as fsspec has it, with these differences.

    - The server's host key must be in OpenSSH's known_hosts; fsspec accepts any key, so that an
      impostor gets the password.
    - Renames don't overwrite, deletions of files leave directories.
    - What SFTP has no error code for, but Python has a class, is told from other failures.

    Args:
        host: Name or IPv4 address.
        use_listings_cache: fsspec's option for all; there is no such cache here.
        host_key_policy: Who is trusted instead, as in fsspec 2026.9: "auto_add", "warning", or a
            paramiko policy, which is asked about every key.
        settings: paramiko's, for `SSHClient.connect`.
    """

    def __init__(
        self,
        host: str,
        *,
        use_listings_cache: bool = False,  # noqa: ARG002  # taken, and of no use here
        host_key_policy: Any = None,
        **settings: Any,
    ) -> None:
        self._policy = _POLICIES.get(host_key_policy, host_key_policy)
        if isinstance(self._policy, str):
            raise InvalidRequestError(f"there is no host_key_policy {self._policy!r} for sftp")
        super().__init__(host, **settings)

    def _connect(self) -> None:
        self.client = paramiko.SSHClient()
        self.client.set_missing_host_key_policy(self._policy)
        if self._policy is _RefuseUnknown:
            _add_known_hosts(self.client.get_host_keys())
        try:
            self.client.connect(self.host, **{"timeout": _SILENCE_S, **self.ssh_kwargs})
            self.ftp = self.client.open_sftp()
        except BaseException as error:
            self.client.close()
            if not isinstance(error, paramiko.BadHostKeyException):
                raise
            message = (
                f"{self.host} has another host key than known_hosts says, so it may be an "
                "impostor; if its key was changed on purpose, remove the old one (ssh-keygen -R) "
                "and connect once with ssh"
            )
            raise InvalidRequestError(message) from error
        self.ftp.get_channel().settimeout(_SILENCE_S)
        # paramiko leaves Nagle's algorithm on: 40 ms for every 32 KiB written
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
        # Unlike fsspec's it is part of the protocol, and refuses to overwrite: OpenSSH makes a
        # link, so that of two that race one fails.
        try:
            self.ftp.rename(old, new)
        except OSError as error:
            if self._is_unclear(error) and self.exists(new):
                raise FileExistsError(new) from error
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
                raise NotADirectoryError(directory) from error
            raise

    def _is_unclear(self, error: BaseException | None) -> bool:
        """Whether the server has refused a call without a reason, on a sound connection."""
        if type(error) is not OSError:
            return False
        channel, transport = self.ftp.get_channel(), self.client.get_transport()
        is_up = transport is not None and transport.is_active()
        return is_up and not (channel.closed or channel.eof_received)
