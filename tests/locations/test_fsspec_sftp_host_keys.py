"""SFTP through fsspec: host keys."""

from pathlib import Path

import paramiko
import pytest
from contracts.fsspec_stores import PASSWORD, known_hosts, module_server, server
from fsspec.config import conf
from servers.sftp import SftpServer

from holdfast.errors import InvalidRequestError, StorageUnavailableError
from holdfast.locations.file_systems import fsspec_file_system

__all__ = ["known_hosts", "module_server", "server"]


class TestHostKeys:
    """The servers that get the password."""

    @staticmethod
    def look(server: SftpServer) -> None:
        list(fsspec_file_system("sftp").list(f"{server.uri}/x"))

    def test_known_server_gets_the_password_once(self, server: SftpServer) -> None:
        self.look(server)
        self.look(server)
        assert server.passwords == [PASSWORD]

    def test_its_name_may_be_hashed(self, server: SftpServer, known_hosts: Path) -> None:
        name, key = server.known_host.split(" ", 1)
        known_hosts.write_text(f"{paramiko.HostKeys.hash_host(name)} {key}")
        self.look(server)
        assert server.logins == 1

    @pytest.mark.parametrize("has_file", [True, False])
    def test_unknown_server_gets_no_password(
        self, server: SftpServer, known_hosts: Path, *, has_file: bool
    ) -> None:
        known_hosts.write_text("# no one")
        if not has_file:
            known_hosts.unlink()
        with pytest.raises(InvalidRequestError, match=f"`ssh -p {server.port} 127.0.0.1`"):
            self.look(server)
        assert server.passwords == []

    def test_lines_of_other_kinds_are_passed_over(
        self, server: SftpServer, known_hosts: Path
    ) -> None:
        key = server.known_host.split(" ", 1)[1]
        others = [
            "# of the company: 2020",
            "",
            "\u00fc",
            f"@cert-authority *.example.com {key}",
            f"@revoked * {key}",
            f"example.com {key[:-30]}",
            "example.com ssh-new AAAA",
        ]
        known_hosts.write_text("\n".join(others))
        with pytest.raises(InvalidRequestError, match="is not in known_hosts"):
            self.look(server)
        known_hosts.write_text("\n".join([*others, server.known_host, *others]))
        self.look(server)
        assert server.passwords == [PASSWORD]

    def test_server_with_a_changed_key_gets_no_password(self, server: SftpServer) -> None:
        server.change_key()
        with pytest.raises(InvalidRequestError, match="differs from the one in known_hosts"):
            self.look(server)
        assert server.passwords == []

    def test_server_gets_no_password_after_its_key_changed(self, server: SftpServer) -> None:
        self.look(server)
        server.change_key()
        with pytest.raises(StorageUnavailableError):  # the old connection
            self.look(server)
        with pytest.raises(InvalidRequestError, match="differs from the one in known_hosts"):
            self.look(server)
        assert server.passwords == [PASSWORD]

    @pytest.mark.parametrize(
        "policy", ["auto_add", paramiko.AutoAddPolicy, paramiko.AutoAddPolicy()]
    )
    def test_fsspecs_own_setting_comes_first(
        self, server: SftpServer, known_hosts: Path, policy: object
    ) -> None:
        known_hosts.unlink()
        conf["sftp"]["host_key_policy"] = policy
        self.look(server)
        self.look(server)
        assert server.logins == 1

    def test_own_policy_also_decides_about_known_servers(self, server: SftpServer) -> None:
        conf["sftp"]["host_key_policy"] = paramiko.RejectPolicy
        with pytest.raises(StorageUnavailableError):
            self.look(server)
        assert server.passwords == []

    def test_unknown_policy_is_named(self, server: SftpServer) -> None:
        conf["sftp"]["host_key_policy"] = "ask"
        with pytest.raises(InvalidRequestError, match=r"host_key_policy .* got 'ask'"):
            self.look(server)
        assert server.passwords == []

    @pytest.mark.parametrize("is_known", [True, False])
    def test_policy_reject_is_the_default(
        self, server: SftpServer, known_hosts: Path, *, is_known: bool
    ) -> None:
        conf["sftp"]["host_key_policy"] = "reject"
        if is_known:
            self.look(server)
        else:
            known_hosts.unlink()
            with pytest.raises(InvalidRequestError, match="is not in known_hosts"):
                self.look(server)
        assert server.logins == is_known
