"""Templates, and how values are shown in them. Every text is escaped; those of items are hostile.

Control characters, and those that turn the direction of a text around, are written as escapes; what is left stands in `<bdi>`,
so that it cannot disturb its neighbours; long texts are cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from holdfast.answers.json_of import json_of
from holdfast.answers.text_tables import as_text, in_words, iso, spoken
from holdfast.model.log_lines import printable
from holdfast.model.money import spoken as money
from holdfast.web.filters import link
from holdfast.web.json_and_csv import readable
from holdfast.web.shared_answers import Answered

#: Texts longer than this are cut in lists.
LONGEST_TEXT = 300

#: A shape for each state, beside its name and its colour.
SHAPES: Mapping[str, str] = {
    "pending": "○",
    "retry_later": "↻",
    "in_progress": "▶",
    "on_hold": "‖",
    "done": "✓",
    "skipped": "–",
    "failed": "✕",
    "exhausted": "⊘",
    "cancelled": "□",
    "open": "▶",
    "stopped": "□",
}


def shown(value: object, most: int = LONGEST_TEXT) -> Markup:
    """A text of somebody else's, made harmless."""
    if value is None:
        return Markup('<span class="none">–</span>')
    text = value if isinstance(value, str) else str(value)
    cut = printable(text[:most])
    if len(text) <= most:
        return Markup("<bdi>{}</bdi>").format(cut)
    return Markup('<bdi>{}…</bdi> <small class="cut">{:,} characters</small>').format(cut, len(text))


def when(at: datetime | None) -> Markup:
    """An instant. The script adds how long ago that is."""
    if at is None:
        return Markup('<span class="none">–</span>')
    full = iso(at)
    return Markup('<time datetime="{}">{} {}</time>').format(full, full[:10], full[11:19])


def until(at: datetime) -> Markup:
    """The same at the end of a sentence, as the end of what it says. The script says for how long that is."""
    full = iso(at)
    return Markup('<time class="until" datetime="{}">until {} {}</time>').format(full, full[:10], full[11:19])


def answered_at(answered: Answered) -> datetime:
    """When the store gave an answer, by the clock of this machine."""
    return datetime.now(UTC) - timedelta(seconds=answered.age_seconds)


def state(name: str | None) -> Markup:
    """A state by shape, name and colour."""
    if name is None:
        return Markup('<span class="none">not begun</span>')
    known = name if name in SHAPES else "pending"
    return Markup('<span class="state {}"><i aria-hidden="true">{}</i> {}</span>').format(
        known, SHAPES.get(name, "•"), name.replace("_", " ")
    )


def span(value: timedelta | None) -> str:
    return "–" if value is None else spoken(value)


def plain_json(value: Any) -> str:
    """An answer, or a part of one, in a line."""
    return readable(json_of(value))


def told(value: Any) -> str:
    """A value of whatever kind for people: of an object its names and values, in parentheses within another one."""
    if isinstance(value, Mapping):
        parts = (
            f"{str(name).replace('_', ' ')} {f'({told(one)})' if isinstance(one, Mapping) else told(one)}"
            for name, one in value.items()
        )
        return ", ".join(parts) or "nothing"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(told, value)) or "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else in_words(value)


def pace(value: float) -> str:
    """So many a minute."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2g}"


def number(value: int) -> str:
    return f"{value:,}"


def amount(value: Decimal) -> str:
    return money(value)


@cache
def environment() -> Environment:
    env = Environment(
        loader=PackageLoader("holdfast.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "as_json": as_text,
        "told": told,
        "plain_json": plain_json,
        "shown": shown,
        "when": when,
        "until": until,
        "answered_at": answered_at,
        "state": state,
        "span": span,
        "number": number,
        "pace": pace,
        "money": amount,
    }
    # Macros for all templates: blocks that are rendered alone see no imports of their file.
    env.globals["link"] = link
    env.globals["now"] = lambda: iso(datetime.now(UTC))
    env.globals["ui"] = env.get_template("macros.html").module
    return env


def render(template: str, values: Mapping[str, Any]) -> str:
    return environment().get_template(template).render(values)


def render_block(template: str, block: str, values: Mapping[str, Any]) -> str:
    """One block of a template, for a part of a page."""
    found = environment().get_template(template)
    return "".join(found.blocks[block](found.new_context(dict(values))))
