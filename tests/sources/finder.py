"""A discoverer as a test sees it: sources as in a job file, looked at by one worker of the harness."""

from __future__ import annotations

import threading

from holdfast.sources import Discoverer, read_source


class Finder:
    """A discoverer of one worker, over sources written as in a job file."""

    def __init__(self, app, folder, worker="w", **more):
        self.app = app
        self.folder = folder
        self.worker = worker
        self.stop = threading.Event()
        self.more = more

    def __call__(self, **sources):
        self.discoverer = self.discoverer_of(sources)
        self.discoverer.register()
        return self.discoverer.one_pass()

    def discoverer_of(self, sources, write=None, read=None):
        specs = [read_source(name, given, where="test", folder=self.folder) for name, given in sources.items()]
        store = self.app.store
        return Discoverer(
            write or store.write,
            read or store.read,
            self.app.worker(self.worker).id,
            {self.app.name: specs},
            stop=self.stop,
            **self.more,
        )

    def again(self, seconds=3600):
        """The next pass, after a while."""
        self.app.clock.advance(seconds)
        return self.discoverer.one_pass()


def function(name, **more):
    return {"python": f"tests.sources.finding.{name}", "every": "1h", **more}


def events(app, kind="discovered"):
    return [
        (one["source"], {name: n for name, n in one.items() if isinstance(n, int) and n and name != "next_look_at"})
        for one in app.events(kind)
    ]
