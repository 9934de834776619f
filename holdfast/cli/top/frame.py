"""Frames: facts and what a person looks at, as lines that fit the screen. Every text of the store is made printable here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from textwrap import wrap

from rich.console import Console
from rich.text import Text

from holdfast.answers.blocker import Blocker
from holdfast.answers.blockers import blockers
from holdfast.answers.limit import ResourceLimit
from holdfast.answers.overview import COLUMNS, count_of
from holdfast.answers.status import PipelineStatus
from holdfast.answers.text_tables import shortened, table, to_the_second
from holdfast.cli.top.polling import Facts
from holdfast.cli.top.view import Row, View
from holdfast.model.log_lines import printable
from holdfast.model.money import spoken as money

#: Columns that are shown even if they count nothing, and those that a narrow screen leaves out first.
ALWAYS = ("waiting", "running", "failed", "done")
LEAST = ("cancelled", "on hold", "today", "retrying")
#: How much more room the stages get than what is below them.
FIRST_WEIGHS = 3
#: No text of the store needs more room than this.
LONGEST = 4000
#: Texts are not broken into narrower lines.
LEAST_WIDTH = 20

HELP = """\
up, k       select the row above
down, j     select the row below
page up     ten rows up
page down   ten rows down
f           show only pipelines with a text in their name
p           pause the selected pipeline, or resume it: asks for a reason
r           retry what has failed at the selected stage, or in the whole
            pipeline: counts first, and asks for a reason
i           open an item of the selected pipeline: why it does not run,
            and how far each stage is
escape      back; give up what is being asked
control-l   draw everything again
?           this page
q           leave

waiting   may be claimed now          failed     failed, or out of attempts
running   a worker holds it           done       done or skipped
retrying  waits for another attempt   /min       attempts per minute, since the
on hold   waits for a person                     first in the last hour
"""


@dataclass(frozen=True)
class Section:
    """Lines that belong together; one of them may have to be in sight."""

    head: Sequence[Text]
    lines: Sequence[Text]
    in_sight: int = 0

    def fitted(self, room: int) -> list[Text]:
        """As much of it as there is room for; the last line says how much is left out."""
        whole = [*self.head, *self.lines]
        if room >= len(whole):
            return whole
        body = room - len(self.head) - 1
        if body < 1:
            return whole[:room]
        first = min(max(0, self.in_sight - body // 2), len(self.lines) - body)
        more = Text(f"  … {len(self.lines) - body:,} more", "dim")
        return [*self.head, *self.lines[first : first + body], more]


def frame(view: View, width: int, height: int, console: Console) -> list[Text]:
    """As many lines as the screen has; the last two are for the person who looks."""
    room = max(0, height - 2)
    if view.page == "overview":
        lines = overview(view, width, room)
    else:
        text = _help() if view.page == "help" else _item(view, width, console)
        view.scrolled = max(0, min(view.scrolled, len(text) - room))
        lines = text[view.scrolled : view.scrolled + room]
    lines += [Text()] * (room - len(lines))
    return [*lines, *_foot(view)][-height:]


# The overview ---------------------------------------------------------------------------------------------------------


def overview(view: View, width: int, room: int | None) -> list[Text]:
    """The page that everything begins with; all of it if the room is not limited."""
    head = _head(view)
    sections = [_stages(view, width, is_live=room is not None), _blockers(view, width), _workers(view.facts, width)]
    shown = [one for one in sections if one.lines or one.head]
    wants = [len(one.head) + len(one.lines) for one in shown]
    if room is not None:
        wants = _shared(wants, max(0, room - len(head)))
    return [*head, *(line for one, n in zip(shown, wants, strict=True) for line in one.fitted(n))][:room]


def _shared(wants: list[int], room: int) -> list[int]:
    """What each gets of the room: who has most gives way, but the first only with three times as much as another."""
    given = list(wants)
    while sum(given) > room and any(given):
        weights = [given[0] / FIRST_WEIGHS, *given[1:]]
        given[weights.index(max(weights))] -= 1
    return given


def _head(view: View) -> list[Text]:
    facts = view.facts
    only = f" · only *{shortened(view.part_of_name, 20)}*" if view.part_of_name else ""
    workers = facts.overview.status.workers
    silent = sum(not one.alive for one in workers)
    parts = [
        f"{len(workers) - silent} worker{'s' if len(workers) - silent != 1 else ''} alive",
        *([f"{silent} silent"] if silent else []),
        f"{sum(one.in_hand for one in workers):,} in hand",
        f"{sum(facts.rates.values()):,.1f} attempts/min",
        f"{money(sum(facts.spent_today.values(), start=Decimal(0)))} spent today",
    ]
    lines = [
        Text(f"holdfast top{only} · {shortened(facts.store, 40)} · {facts.at:%H:%M:%S} UTC", "bold"),
        Text(" · ".join(parts)),
    ]
    if budgets := [text for one in facts.overview.limits for text in _budgets(one)]:
        lines.append(Text(f"budgets: {', '.join(budgets)}"))
    if view.trouble:
        lines.append(Text(shortened(view.trouble, LONGEST), "bold red"))
    return [*lines, Text()]


def _budgets(limit: ResourceLimit) -> list[str]:
    found = []
    for key, spent, when in (("budget_per_day", limit.spent_today, "today"), ("budget", limit.spent, "in all")):
        if limit.allowed.get(key) is not None:
            found.append(f"{shortened(limit.name, 30)} {money(spent)} of {shortened(limit.allowed[key], 20)} {when}")
    return found


def _stages(view: View, width: int, *, is_live: bool) -> Section:
    pipelines = view.overview.status.pipelines
    if not pipelines:
        none = "No pipeline has this in its name." if view.part_of_name else "There are no pipelines in this store yet."
        return Section([], [Text(none)])
    counts = {
        (pipeline.name, stage.name): {name: count_of(stage, states) for name, states in COLUMNS.items()}
        for pipeline in pipelines
        for stage in pipeline.stages
    }
    columns = [name for name in COLUMNS if name in ALWAYS or any(one[name] for one in counts.values())]
    has_money = bool(view.facts.spent_today)
    head = ["pipeline, stage", *columns, "/min", *(["today"] if has_money else [])]
    selected = view.selected if is_live else None
    rows: dict[Row, list[str]] = {}
    styles: dict[Row, str] = {}
    for pipeline in pipelines:
        row: Row = (pipeline.name, None)
        rows[row] = [_name(pipeline), *("" for _ in columns), "", *([_spent(view, pipeline)] if has_money else [])]
        styles[row] = "bold yellow" if pipeline.paused else "bold"
        for stage in pipeline.stages:
            row = (pipeline.name, stage.name)
            numbers = [f"{counts[row][name]:,}" for name in columns]
            rate = f"{view.facts.rates.get(row, 0.0):,.1f}"
            rows[row] = [f"  {stage.name}", *numbers, rate, *([""] if has_money else [])]
            styles[row] = "red" if counts[row]["failed"] else ""
    first, *lines = table(head, rows.values(), width=width, indent="  ", right=head[1:], least=LEAST)
    texts = []
    for row, line in zip(rows, lines, strict=True):
        is_selected = row == selected
        texts.append(Text(f"> {line[2:]}" if is_selected else line, "reverse" if is_selected else styles[row]))
    return Section([Text(first, "bold")], texts, list(rows).index(selected) if selected is not None else 0)


def _name(pipeline: PipelineStatus) -> str:
    return f"{pipeline.name} (paused)" if pipeline.paused else pipeline.name


def _spent(view: View, pipeline: PipelineStatus) -> str:
    spent = view.facts.spent_today.get(pipeline.name)
    return money(spent) if spent else ""


def _blockers(view: View, width: int) -> Section:
    found = [Text(line, "yellow") for one in blockers(view.overview) for line in _blocker(one, width)]
    return Section([Text(), Text("in the way", "bold")] if found else [], found)


def _blocker(one: Blocker, width: int) -> list[str]:
    """What stands in the way, in as many lines as it needs: until when it does comes last, and matters most."""
    when = "".join(
        f", {word} {to_the_second(at)}" for word, at in (("since", one.since), ("until", one.until)) if at is not None
    )
    do = f"; {shortened(one.do, 200)}" if one.do else ""
    text = f"{shortened(one.where, 60)}: {shortened(one.what, 300)}{when}{do}"
    return wrap(text, max(width, LEAST_WIDTH), initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _workers(facts: Facts, width: int) -> Section:
    found = [Text(line) for line in facts.overview.status.workers.lines(width)]
    return Section([Text(), *found[:2]], found[2:])


# Other pages ----------------------------------------------------------------------------------------------------------


def _help() -> list[Text]:
    return [Text("holdfast top: keys and columns", "bold"), Text(), *map(Text, HELP.splitlines())]


def _item(view: View, width: int, console: Console) -> list[Text]:
    if view.item is None:
        return [Text("looking for it …")]
    stages = [line for stage in view.item.details.stages for line in stage.lines()]
    given = [*view.item.why.lines(), "", *stages]
    lines: list[Text] = []
    for line in given:
        lines += Text(shortened(line, LONGEST)).wrap(console, max(1, width)) or [Text()]
    return [Text("item", "bold"), Text(), *lines]


def _foot(view: View) -> list[Text]:
    if view.prompt is not None:
        hint = "y for yes, any other key for no" if view.prompt.is_yes_or_no else "enter to go on, escape to give up"
        return [prompt_line(view), Text(hint, "dim")]
    if view.page == "overview":
        pause = "resume" if view.pipeline is not None and view.pipeline.paused else "pause"
        # What helps most stands where a narrow screen does not cut it.
        keys = f"? help  q quit  j/k select  f filter  p {pause}  r retry  i item"
    else:
        keys = "q quit  escape back  j/k scroll"
    return [Text(shortened(view.message, LONGEST)), Text(keys, "dim")]


def prompt_line(view: View) -> Text:
    assert view.prompt is not None
    return Text(printable(f"{view.prompt.label} {view.prompt.typed}"), "bold")
