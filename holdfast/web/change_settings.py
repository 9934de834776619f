"""Changes to what is not an item: pause and resume, limits, a look at a source. A form says what will happen; sending it does
it.

Such a change is a state, not a step: sent twice, it leaves the same state, and the audit has both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from holdfast.answers.text_tables import as_text, shortened
from holdfast.app import Holdfast
from holdfast.model import resource as limiting
from holdfast.model.tuning import read_value
from holdfast.web.bulk_actions import LONGEST_REASON, Acting, Face, posted, require
from holdfast.web.filters import Filter, Query, WrongQuery, read_query
from holdfast.web.security import visit

#: What is changed, and of which kind it is.
NAME = Filter("name", "Name")
KIND = Filter("kind", "Kind", choices=("pipeline", "resource", "source"))


@dataclass(frozen=True, slots=True)
class Target:
    """What to change, what the form says, and who sent it."""

    name: str
    kind: str
    form: Mapping[str, str] = field(default_factory=dict)
    by: str = ""

    @property
    def who(self) -> dict[str, str]:
        return {"by": self.by, "reason": self.form.get("reason", "")[:LONGEST_REASON]}


@dataclass(frozen=True, slots=True)
class Change:
    #: The command of the command line, which an access function allows.
    name: str
    label: str
    #: What will happen, said in the form.
    does: str
    act: Callable[[Holdfast, Target], Any]
    #: The page that it is reached from, and returns to.
    page: str
    #: What the form shows beside.
    view: Callable[[Holdfast, Target], Mapping[str, Any]] = lambda app, target: {}


# What they do ---------------------------------------------------------------------------------------------------------


def _pause(app: Holdfast, target: Target) -> None:
    length = target.form.get("for", "").strip() or None
    app.pause(target.name, until=length, resource=target.kind == "resource", **target.who)


def _resume(app: Holdfast, target: Target) -> None:
    app.resume(target.name, resource=target.kind == "resource", **target.who)


def _look(app: Holdfast, target: Target) -> None:
    pipeline, _, source = target.name.partition("/")
    app.request_look(pipeline, source, **target.who)


def _tune(app: Holdfast, target: Target) -> None:
    """Only the fields that somebody has changed: what others have tuned meanwhile stays."""
    form = target.form
    changed = {key: form[f"set-{key}"].strip() for key in limiting.KEYS if f"set-{key}" in form}
    changed = {key: text for key, text in changed.items() if text != form.get(f"was-{key}", "").strip()}
    if not changed:
        raise WrongQuery("no limit was changed in the form, so there is nothing to do")
    pipeline, prefix = _place(app, target.name)
    # As the command line does it: the pipelines of a program are not registered by a change of limits.
    with Holdfast(app.url, create=False) as plain:
        plain.tune(pipeline, {f"{prefix}{key}": read_value(text) for key, text in changed.items()}, **target.who)


def _place(app: Holdfast, name: str) -> tuple[str, str]:
    """The pipeline to tune, and what stands before the keys."""
    if name.startswith("@"):
        pipeline, _, stage = name[1:].partition("/")
        return pipeline, f"{stage}." if stage else ""
    pipelines = app.status().pipelines
    # A stage of the resource's name would be meant instead.
    free = [one.name for one in pipelines if all(stage.name != name for stage in one.stages)]
    if not free:
        raise WrongQuery(f"every pipeline has a stage called {name!r}: its limits are meant where this resource's are")
    return free[0], f"{name}."


def _limits(app: Holdfast, target: Target) -> Mapping[str, Any]:
    found = {one.name: one for one in app.limits()}.get(target.name)
    if found is None and not target.name.startswith("@"):
        raise WrongQuery(f"there is no resource {target.name!r} in this store")
    allowed = found.allowed if found else {}
    return {
        "keys": {key: _written(allowed.get(key)) for key in limiting.KEYS},
        "hints": {key: _written(example) for key, example in limiting.KEYS.items()},
        "tuned": found.tuned if found else (),
    }


def _written(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else as_text(value)


CHANGES: Mapping[str, Change] = {
    one.name: one
    for one in (
        Change("pause", "Pause", "Nothing more begins there. What is running is finished.", _pause, "limits"),
        Change(
            "resume",
            "Resume",
            "Work begins again. For a resource this also ends a cool-down and closes its breaker.",
            _resume,
            "limits",
        ),
        Change(
            "tune",
            "Change limits of",
            "Running workers apply the changes within seconds. An empty field takes back what was set here before.",
            _tune,
            "limits",
            _limits,
        ),
        Change("discover", "Look now at", "The next worker that has this source looks at it.", _look, "sources"),
    )
}


class Changing:
    """The forms of these changes."""

    def __init__(self, dashboard: Face, acting: Acting) -> None:
        self._dashboard, self._acting = dashboard, acting

    def routes(self) -> list[Route]:
        return [Route("/change/{what}", self.change, methods=["GET", "POST"])]

    async def change(self, request: Request) -> Response:
        change = CHANGES.get(request.path_params["what"])
        if change is None:
            raise HTTPException(404, f"There is nothing of this name to change; there are: {', '.join(CHANGES)}.")
        require(request, change.name)
        if request.method == "GET":
            return await self._ask(request, change)
        form = dict(await posted(request))
        query = _read(change, [(one, form.get(one, "")) for one in ("name", "kind")])
        target = Target(query["name"], query["kind"], form, visit(request).access.name)
        await self._acting.run(lambda app: change.act(app, target))
        return RedirectResponse(f"../{change.page}", 303)

    async def _ask(self, request: Request, change: Change) -> Response:
        query = _read(change, request.query_params.multi_items())
        target = Target(query["name"], query["kind"])
        answered = await self._dashboard.questions.ask(
            f"change {change.name} {query.text}", lambda app: dict(change.view(app, target))
        )
        values = {"change": change, "target": target, **answered.value}
        return self._dashboard.html(
            request, "change.html", title=f"{change.label} {shortened(target.name, 80)}?", **values
        )


def _read(change: Change, pairs: Any) -> Query:
    query = read_query(f"change/{change.name}", (NAME, KIND), pairs)
    if not query["name"] or not query["kind"]:
        raise WrongQuery("say what to change: its name and its kind")
    return query
