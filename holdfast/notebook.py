"""What is different in a notebook: cells are run again, progress is one display that changes, and nothing needs a widget."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from holdfast.answers.run_summary import Summary
from holdfast.app import Holdfast
from holdfast.progress import StageProgress, Watched
from holdfast.runtime.async_caller import AsyncCaller
from holdfast.worker import Settings


def _shell() -> Any:
    """The running IPython, if this is one."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def cell() -> int | None:
    """The number of the input that is being run, in a notebook, in IPython, or (always 0) at Python's prompt; None in a
    program. Each run of a cell has a number of its own."""
    shell = _shell()
    if shell is not None:
        return int(shell.execution_count)
    return 0 if hasattr(sys, "ps1") else None


def may_replace(old: object, new: object, defined_in: int | None) -> bool:
    """Whether a definition replaces the one of the same name: a person has changed it in a cell and run that again. Not if both
    are in one run of a cell, nor if either comes from a module."""
    here = cell()
    written_here = all(getattr(one, "__module__", None) == "__main__" for one in (old, new))
    return here is not None and written_here and (here != defined_in or here == 0)


def run_shown(
    app: Holdfast, settings: Settings, raise_on_failure: bool, until_drained: bool, caller: AsyncCaller | None = None
) -> Summary:
    """`app.run`, with its progress in the output of the cell if this is a notebook."""
    with _progress(app) as watched:
        return app.run(
            settings,
            raise_on_failure=raise_on_failure,
            until_drained=until_drained,
            on_tick=None if watched is None else watched.tick,
            caller=caller,
        )


@contextmanager
def _progress(app: Holdfast) -> Iterator[Watched | None]:
    """Progress of the app's pipelines, if this is a notebook; its last state stays there."""
    shell = _shell()
    if shell is None or not hasattr(shell, "kernel"):
        yield None
        return
    watched = Watched(app.url, [spec.name for spec in app.pipelines], _Display)
    try:
        yield watched
    except BaseException:
        watched.close(None)
        raise
    watched.close(app.status().pipelines)


class _Display:
    """A table in the output of a cell, in place of the one before."""

    def __init__(self) -> None:
        shown: Any = import_module("IPython.display")
        self._html = shown.HTML
        self._shown = ""
        self._display = shown.display(shown.HTML(""), display_id=True)

    def draw(self, stages: Sequence[StageProgress]) -> None:
        html = progress_html(stages)
        if html != self._shown:
            self._shown = html
            self._display.update(self._html(html))

    def close(self, stages: Sequence[StageProgress] | None) -> None:
        if stages is not None:
            self.draw(stages)


def progress_html(stages: Sequence[StageProgress]) -> str:
    """A row for each stage: how many items need nothing more of it, and what became of the others."""
    from html import escape

    def row(stage: StageProgress) -> str:
        counts = ", ".join(f"{n:,} {word}" for word, n in stage.counts.items())
        more = "; ".join(part for part in (stage.eta, stage.money, stage.held) if part)
        bar = f'<progress value="{stage.over}" max="{max(stage.total, 1)}"></progress>'
        cells = (escape(stage.label), bar, escape(counts), escape(more))
        return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"

    return f"<table>{''.join(map(row, stages))}</table>"
