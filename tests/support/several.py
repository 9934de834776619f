"""Several pipelines on one bench: those that submit, and those that are submitted to.

run = Several(url, [connections])
ran = run(books, ["page-1"])                      # works until nothing is left to do in any of them
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import Holdfast, Pipeline
from tests.support.bench import Bench, Items


class Several(Bench):
    """A bench whose workers know more pipelines than the one that is run."""

    def __init__(self, url: str, others: Sequence[Pipeline]) -> None:
        super().__init__(url)
        self.others = list(others)

    def app(self, pipeline: Pipeline, items: Items = ()) -> Holdfast:
        specs = [one.spec for one in (pipeline, *(other for other in self.others if other is not pipeline))]
        app = self._stack.enter_context(Holdfast(self.url, specs))
        if items:
            app.add(pipeline.name, items)
        return app
