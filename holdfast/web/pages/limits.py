"""Limits: every resource with what is allowed, used and in the way; pipelines and stages that can be paused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from holdfast.answers.limit import ResourceLimits
from holdfast.answers.status import PipelineStatus
from holdfast.app import Holdfast
from holdfast.web.filters import Query
from holdfast.web.page import Page


@dataclass(frozen=True)
class LimitsPage:
    limits: ResourceLimits
    pipelines: tuple[PipelineStatus, ...]


def ask(app: Holdfast, query: Query) -> LimitsPage:
    return LimitsPage(app.limits(), app.status().pipelines)


def rows(answer: LimitsPage) -> Iterable[Any]:
    return answer.limits


page = Page(name="limits", title="Limits", place=60, ask=ask, rows=rows)
