"""What to change in a handler, deduced from how its runs differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.crashtest.compare import Difference

EFFECT = (
    "{where} is written while {stage} runs, outside the transaction that completes the stage: after a crash its rows are "
    "there although the stage is not done, or half of them are. Give the writing to ctx.effect(function, …): it takes place "
    "with the stage, or not at all."
)
ONCE = (
    "{where} pays again when it starts again. Make the call with ctx.once(name, function, …, cost=…): what it returned is "
    "recorded before it is used, a later attempt gets that, and a call that may have been made is reported as in doubt."
)
NAMES = (
    "the names that {where} gives to ctx.once change from attempt to attempt, so that a later attempt does not find what an "
    "earlier one has recorded, and calls again. Make names of what does not change: the item's key, the number of a page."
)
KEYS = (
    "the keys or the data of items submitted to {where} change from run to run. Make keys of what does not change (the "
    "item's key and its parts), not of random numbers, the time or ctx.attempt: the same work must come to the same items."
)
COLUMNS = (
    "the rows of {where} differ in {columns} alone. If these are keys that others refer to, make them of what does not "
    "change (the item's key, a number within it). If they may differ (times, numbers from a sequence), leave them out: "
    "{options}"
)
ROWS = (
    "the rows of {where} depend on how often a handler was started. Write them with ctx.effect, from the item and from "
    "results of earlier stages alone: not from random numbers, the time, ctx.attempt, or rows that an earlier attempt left."
)
RESULT = (
    "what {where} returns changes from run to run, so that later stages build on something else after a crash. Return what "
    "follows from the item; keep what is drawn or slow with ctx.once. If it may differ, leave it out: --ignore {where}"
)
STATE = (
    "{where} ends otherwise after a crash: its handler must be able to start again where an earlier attempt has begun."
)
DANGLING = "write rows of {where} and the rows that they refer to in the same ctx.effect."
WRONG = "holdfast's own tables are not in order: that is a fault of holdfast's. Please report it, with the pipeline if you can."


def advice(differences: Sequence[Difference]) -> list[str]:
    """A sentence or two for each thing to change, causes first."""
    told = dict.fromkeys(_each(differences))
    return list(told)


def _each(differences: Sequence[Difference]) -> Iterable[str]:
    outside = [one for one in differences if one.kind == "outside"]
    names = {one.where for one in differences if one.kind == "memo"}
    for one in outside:
        yield EFFECT.format(where=one.where.partition(" ")[0], stage=one.where.partition(" ")[2])
    for where in sorted(names):
        yield NAMES.format(where=where)
    for one in differences:
        if one.kind in ("paid", "cost") and one.where not in names:
            yield ONCE.format(where=one.where or "a handler")
        elif one.kind == "items":
            yield KEYS.format(where=one.where)
        elif one.kind == "table" and one.columns:
            options = " ".join(f"--ignore {one.where}.{column}" for column in one.columns)
            yield COLUMNS.format(where=one.where, columns=" and ".join(one.columns), options=options)
        elif one.kind == "table" and not outside:
            yield ROWS.format(where=one.where)
        elif one.kind == "result":
            yield RESULT.format(where=one.where)
        elif one.kind == "state":
            yield STATE.format(where=one.where)
        elif one.kind == "dangling":
            yield DANGLING.format(where=one.where)
        elif one.kind == "wrong":
            yield WRONG
