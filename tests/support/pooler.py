"""A real PgBouncer in front of a PostgreSQL server, in transaction mode and with fewer sessions than it has clients.

    with Pooler(server) as pooler:
        open_store(pooler.through(url))          # the same database, by sessions that are handed round

It comes from Debian's package (`make system-deps`), and refuses to run as root: started by root, it runs as the user that
the tests' own PostgreSQL runs as.
"""

from __future__ import annotations

import getpass
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.cluster import server_user
from tests.support.forking import die_with_parent
from tests.support.waiting import wait_for

#: Set to 1, every test with a store on PostgreSQL reaches it through a pooler.
VARIABLE = "HOLDFAST_POOLER"
PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
PORT = 6432
#: So many sessions, for however many clients.
SESSIONS = 3
MISSING = "NOT PROVED HERE: a transaction pooler between holdfast and PostgreSQL; install pgbouncer (make system-deps)"


def is_behind_a_pooler() -> bool:
    """Whether tests are to reach their stores on PostgreSQL through a pooler."""
    return os.environ.get(VARIABLE) == "1"


class Pooler:
    """One PgBouncer, its settings, log and socket in a folder that goes with it."""

    def __init__(self, server: str, sessions: int = SESSIONS) -> None:
        if PROGRAM is None:
            pytest.skip(MISSING)
        self._server = {name: str(value) for name, value in conninfo_to_dict(server).items()}
        self._server.setdefault("user", getpass.getuser())
        self._server.setdefault("dbname", self._server["user"])
        self._sessions = sessions
        self.folder = Path(tempfile.mkdtemp(prefix="hf-pool-"))

    def __enter__(self) -> Pooler:
        user = server_user()
        if user is not None:
            entry = pwd.getpwnam(user)
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
        # The folder of its socket is for every user: the tests' processes may be others'.
        self.folder.chmod(0o755)
        (self.folder / "users").write_text(f'"{self._server["user"]}" ""\n')
        (self.folder / "ini").write_text(self._settings())
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def restart(self) -> None:
        """Kill it, and start another in its place."""
        self._end()
        self._start()

    @property
    def said(self) -> str:
        log = self.folder / "log"
        return log.read_text(errors="replace") if log.exists() else ""

    def through(self, url: str) -> str:
        """The address of the same database of the server by way of the pooler; what the address says beside the place stays."""
        parts = urlsplit(url)
        kept = [one for one in parts.query.split("&") if one and not one.startswith(("host=", "port="))]
        query = "&".join([f"host={quote(str(self.folder))}", f"port={PORT}", *kept])
        user = quote(self._server["user"])
        return f"{parts.scheme}://{user}@{parts.path or '/' + unquote(self._server['dbname'])}?{query}"

    def ask(self, command: str) -> list[dict[str, object]]:
        """What the pooler's own console says, as in `SHOW POOLS`."""
        address = f"host={self.folder} port={PORT} user={self._server['user']} dbname=pgbouncer"
        with psycopg.connect(address, autocommit=True, row_factory=psycopg.rows.dict_row) as console:
            return list(psycopg.ClientCursor(console, row_factory=psycopg.rows.dict_row).execute(command).fetchall())

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [str(PROGRAM), str(self.folder / "ini")],
            user=server_user(),
            preexec_fn=die_with_parent,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(lambda: self._socket.exists() or self._process.poll() is not None)
        assert self._process.poll() is None, self.said

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._socket.unlink(missing_ok=True)

    @property
    def _socket(self) -> Path:
        return self.folder / f".s.PGSQL.{PORT}"

    def _settings(self) -> str:
        server = self._server
        place = " ".join(f"{name}={server[name]}" for name in ("host", "port", "password") if name in server)
        settings = {
            "pool_mode": "transaction",
            "default_pool_size": self._sessions,
            "max_client_conn": 1000,
            "query_wait_timeout": 20,
            "listen_addr": "",
            "listen_port": PORT,
            "unix_socket_dir": self.folder,
            "auth_type": "trust",
            "auth_file": self.folder / "users",
            "admin_users": server["user"],
            "logfile": self.folder / "log",
        }
        if _version() >= (1, 21):
            settings["max_prepared_statements"] = 0  # before, it could not keep any in order either
        lines = [f"{name} = {value}" for name, value in settings.items()]
        return "\n".join(["[databases]", f"* = {place}", "[pgbouncer]", *lines, ""])


def _version() -> tuple[int, ...]:
    said = subprocess.run([str(PROGRAM), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"PgBouncer (\d+)\.(\d+)", said)
    assert found is not None, said
    return tuple(map(int, found.groups()))
