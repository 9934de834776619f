"""Every key of the job file, from the shapes that check it."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from holdfast.jobfile import keys
from holdfast.jobfile.shapes import Either, Free, Many, Named, Scalar, Table, ValueShape
from holdfast.model.alert import KEYS as ALERT_KEYS
from holdfast.model.schedule import KEYS as SCHEDULE
from holdfast.sources import Source
from holdfast.sources.registry import COMMON, EACH, FOR_EACH, KINDS
from tools.reference.markdown import code, finished, head, table

#: The tables of the file, in the order of the page, and where each is.
TABLES = (
    ("The file", "", keys.FILE),
    ("A pipeline", "`pipelines.NAME`", keys.PIPELINE),
    ("A stage", "`pipelines.NAME.stages.NAME`", keys.STAGE),
    ("Backoff", "`backoff` of a stage", keys.BACKOFF),
    ("A resource", "`resources.NAME`, and `tuning.stages.NAME` of a pipeline", keys.RESOURCE),
    ("A breaker", "`breaker` of a resource", keys.BREAKER),
    ("Tuning", "`pipelines.NAME.tuning`", keys.TUNING),
    ("Guards", "`tuning.guards`", keys.GUARDS),
    ("A price", "`pipelines.NAME.prices.MODEL`", keys.PRICE),
)


def page() -> str:
    lines = head(
        "The job file",
        """Every key of `holdfast.yaml`. The [guide](../guide/job-file.md) shows how to use it; `holdfast schema` prints the
        same as JSON Schema, for editors. In any text, `${NAME}` is replaced by an environment variable.""",
    )
    for title, where, shape in TABLES:
        lines += [f"## {title}", "", *([f"At {where}.", ""] if where else [])]
        rows = (
            (code(name), ("**required**; " if one.required else "") + one.about, _takes(one.shape))
            for name, one in shape.keys.items()
        )
        lines += table(("key", "meaning", "takes"), rows)
    lines += [
        "## A source",
        "",
        "At `pipelines.NAME.sources.NAME`: one of these [kinds](../guide/sources.md), with its options.",
        "",
    ]
    lines += table(
        ("kind", "options"),
        ((code(kind), _codes(_kind(kind).options)) for kind in sorted(KINDS)),
    )
    lines += [f"Every kind also takes {_codes(COMMON)}, and a schedule: {_codes(SCHEDULE)}.", ""]
    lines += [f"With `{FOR_EACH}`, a mapping with {_codes(EACH)}, it is looked at once for each item.", ""]
    lines += ["## An alert", "", "At `alerts.NAME`. [Alerts](../guide/alerts.md) describes each key.", ""]
    lines += table(("key", "example"), ((code(key), code(str(example))) for key, example in ALERT_KEYS.items()))
    return finished(lines)


def _kind(name: str) -> type[Source]:
    module, _, cls = KINDS[name].partition(".")
    found: type[Source] = getattr(import_module(f"holdfast.sources.{module}"), cls)
    return found


def _codes(names: Iterable[str]) -> str:
    return ", ".join(code(name) for name in names)


def _takes(shape: ValueShape) -> str:
    """What a value may be, in a few words."""
    if isinstance(shape, Scalar):
        return shape.expected
    if isinstance(shape, Many):
        return f"{_takes(shape.of)}, or a list of them"
    if isinstance(shape, Either):
        return f"{shape.scalar.expected}"
    if isinstance(shape, Named):
        return f"a mapping of names to {_takes(shape.of)}"
    if isinstance(shape, Table):
        titles = {id(one): title for title, _, one in TABLES}
        title = titles.get(id(shape))
        return f"[{title.lower()}](#{title.lower().replace(' ', '-')})" if title else "a mapping"
    assert isinstance(shape, Free)
    return f"[{shape.what}](#{shape.what.replace(' ', '-')})"
