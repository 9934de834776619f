"""A MariaDB server of the test run's own, reached by a socket in its folder.

    with MariaDB() as server:
        engine = sa.create_engine(server.database("books"))

It comes from Debian's package (`make system-deps`), and ends with the process that started it.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pymysql
import pytest

from tests.support.forking import die_with_parent
from tests.support.waiting import STUCK_SECONDS, wait_for

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
PROGRAM, INSTALLER = (shutil.which(name, path=_PATH) for name in ("mariadbd", "mariadb-install-db"))
MISSING = "NOT PROVED HERE: holdfast.adopt on MariaDB; install mariadb-server (make system-deps)"
ADMINISTRATOR = "root"
#: Small and quick to make, and soon to say who waits in vain; nothing in it has to survive the server.
SETTINGS = (
    "--innodb-buffer-pool-size=16M",
    "--innodb-log-file-size=4M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-lock-wait-timeout=10",
)


class MariaDB:
    """One server, its data in a folder that goes with it."""

    def __init__(self) -> None:
        if PROGRAM is None or INSTALLER is None:
            pytest.skip(MISSING)
        # A short name: the path of a unix socket has room for about a hundred characters.
        self.folder = Path(tempfile.mkdtemp(prefix="hf-maria-"))
        self.socket = self.folder / "socket"

    def __enter__(self) -> MariaDB:
        assert PROGRAM is not None and INSTALLER is not None
        # As root it runs only if it is told to.
        common = ["--no-defaults", f"--datadir={self.folder / 'data'}", f"--user={getpass.getuser()}"]
        self._log = self.folder / "log"
        with self._log.open("wb") as log:
            subprocess.run(
                [INSTALLER, *common, "--auth-root-authentication-method=normal", "--skip-test-db", *SETTINGS],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                timeout=STUCK_SECONDS,
                check=True,
            )
            self._process = subprocess.Popen(
                [PROGRAM, *common, "--skip-networking", f"--socket={self.socket}", *SETTINGS],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
            )
        try:
            wait_for(self._answers)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(STUCK_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def database(self, name: str) -> str:
        """Make a database and return its address."""
        self.execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        return self.url(name)

    def url(self, database: str = "", user: str = ADMINISTRATOR) -> str:
        return f"mysql+pymysql://{user}@/{database}?unix_socket={quote(str(self.socket))}"

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with pymysql.connect(unix_socket=str(self.socket), user=ADMINISTRATOR, autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            return list(cursor.fetchall())

    def _answers(self) -> bool:
        assert self._process.poll() is None, f"the server has ended:\n{self._log.read_text(errors='replace')[-2000:]}"
        try:
            return bool(self.execute("SELECT 1"))
        except pymysql.err.OperationalError:
            return False
