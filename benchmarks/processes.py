"""What a server and all its processes have used."""

from __future__ import annotations

import psutil


def postgres_server(url: str) -> int | None:
    """The first process of the server of a store; None if it has none."""
    if url.startswith("sqlite"):
        return None
    import psycopg

    with psycopg.connect(url) as conn:
        return int(psutil.Process(conn.info.backend_pid).ppid())


def family_cpu(pid: int) -> float:
    """Seconds of CPU of a process, of those it has waited for, and of those that live."""
    first = psutil.Process(pid)
    while True:
        ended = first.cpu_times()[2:4]
        living = 0.0
        for process in first.children(recursive=True):
            try:
                living += sum(process.cpu_times()[:4])
            except psutil.NoSuchProcess:
                break  # it ended meanwhile: its time has moved to the first
        else:
            now = first.cpu_times()[:4]
            if now[2:4] == ended:
                return float(sum(now)) + living
