"""Status: how many items are in which state of every stage, what ended badly, who works, and whether anything is left to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.engine import claim_within_limits
from holdfast.engine.blocked_since import BlockedSince
from holdfast.engine.item_pages import items
from holdfast.engine.layout import layout
from holdfast.model import codec, shapes
from holdfast.model.definition_changes import release
from holdfast.model.duration_buckets import percentile_us
from holdfast.model.error_fingerprint import cause_of
from holdfast.model.facts import Facts
from holdfast.model.item_filter import Which
from holdfast.model.layout import PipelineRow, StageRow
from holdfast.model.shell_quoting import word
from holdfast.model.states import State
from holdfast.store import Transaction

#: How many bad stages of items are looked at for the most frequent errors, for each stage and state; and how many errors, and
#: items, are reported.
LOOKED_AT = 500
MOST_ERRORS = 5
#: How many of those that are next in a queue are asked since when they wait.
HEAD = 100
#: So many of the stages of items that are due again are counted, those that have been due for longest.
MOST_DUE = 1000
#: Of a worker that has not sent its first heartbeat.
_NOTHING_REPORTED: Facts = {"in_hand": 0, "done": {}, "progress": [], "guards": []}


def unfinished(tx: Transaction, versions: Mapping[int, str]) -> bool:
    """Is anything still to be done in these stages, by anyone, or on hold for somebody with these versions of their code?"""
    known = layout(tx).stages
    if any(known[stage].backfill_next or known[stage].hold_next for stage in versions):
        return True
    current = [stage for stage, version in versions.items() if known[stage].stands(version)]
    return bool(tx.run("any_open", stages=list(versions), current=current))


def is_empty(tx: Transaction) -> bool:
    """Whether no pipeline has items."""
    return not any(tx.run("newest_item", pipeline=row.id)[0][0] for row in layout(tx).pipelines.values())


def status(tx: Transaction) -> list[Facts]:
    """Every pipeline with its stages: how many items are in which state, and how long attempts took."""
    known = layout(tx)
    states: dict[int, dict[str, int]] = {}
    durations: dict[int, dict[int, int]] = {}
    sums: dict[int, list[int]] = {}
    for stage, state, bucket, n, total_us, most_us in tx.run("read_counts"):
        per_stage = states.setdefault(stage, {})
        per_stage[state] = per_stage.get(state, 0) + n
        if bucket >= 0:
            per_bucket = durations.setdefault(stage, {})
            per_bucket[bucket] = per_bucket.get(bucket, 0) + n
            entry = sums.setdefault(stage, [0, 0])
            entry[0] += total_us
            entry[1] = max(entry[1], most_us)
    pipelines: dict[str, Facts] = {}
    blocked_since = BlockedSince(tx)
    delayed = any(counts.get(State.RETRY_LATER) for counts in states.values())
    due: dict[int, int] = dict(tx.run("count_due", now=tx.now, most=MOST_DUE)) if delayed else {}
    for row in sorted(known.stages.values(), key=lambda row: (row.pipeline_name, row.position)):
        pipeline = pipelines.setdefault(
            row.pipeline_name,
            {
                "name": row.pipeline_name,
                **_pause_of(known.pipelines[row.pipeline_name]),
                "stages": [],
                "removed": [],
            },
        )
        counts = {state: n for state, n in sorted(states.get(row.id, {}).items()) if n}
        facts: Facts = {"name": row.name, "version": row.version, "after": list(row.after), "states": counts}
        if not row.active:
            pipeline["removed"].append(facts)
            continue
        facts["due"] = due.get(row.id, 0)
        facts["timings"] = _timings(durations.get(row.id, {}), sums.get(row.id, [0, 0]))
        facts["backfilling"] = row.backfill_next is not None
        facts["on_hold"] = _on_hold(tx, row) if counts.get(State.ON_HOLD) or row.hold_next else []
        waiting = bool(counts.get(State.PENDING))
        facts["held"] = _held(tx, row, blocked_since) if waiting or counts.get(State.RETRY_LATER) else None
        facts |= _pause_of(row)
        facts["pending_since"] = tx.run("waiting_since", stage=row.id, most=HEAD)[0][0] if waiting else None
        pipeline["stages"].append(facts)
    return list(pipelines.values())


def _on_hold(tx: Transaction, stage: StageRow) -> list[Facts]:
    """Why work of a stage is on hold, each reason once, with what lets it run; as far as a look at some of it tells."""
    found: dict[str, Facts] = {}
    for kind, reason, since in tx.run("reasons_of_holds", stage=stage.id, most=LOOKED_AT):
        do = release(stage.pipeline_name, stage.name)
        if kind == "version":
            reason = f"it waits for a worker with version {stage.version}"
        elif kind == "doubt":
            reason = "paid calls are in doubt, and a person is to say what became of them"
            where = f"--pipeline {word(stage.pipeline_name)} --stage {word(stage.name)}"
            do = f"holdfast resolve {where} --not-charged|--charged AMOUNT"
        one = found.setdefault(reason, {"kind": kind, "reason": reason, "since": since, "do": do})
        one["since"] = min(one["since"], since)
    return list(found.values())


def bad_ends(tx: Transaction, places: Iterable[tuple[str, str, str]]) -> tuple[list[Facts], list[Facts]]:
    """The most frequent errors of what ended badly, given as (pipeline, stage, state), and the first few of those that did.
    So many of each are looked at, however many there are; `more` says that there are others."""
    found: dict[tuple[str, ...], Facts] = {}
    first: list[Facts] = []
    for pipeline, stage, state in places:
        where: Facts = {"pipeline": pipeline, "stage": stage}
        rows = items(tx, Which(**where, states=frozenset({State(state)})), most=LOOKED_AT)
        first += rows[: MOST_ERRORS - len(first)]
        for row in rows:
            error = (row["error"] or "no error was recorded").partition("\n")[0]
            like = (pipeline, stage, state, cause_of(error, None, row["key"]).group)
            entry = found.setdefault(like, {**where, "state": state, "error": error, "key": row["key"], "count": 0})
            entry["count"] += 1
            entry["more"] = len(rows) == LOOKED_AT
    return sorted(found.values(), key=lambda one: -one["count"])[:MOST_ERRORS], first


def _pause_of(row: PipelineRow | StageRow) -> Facts:
    """Whether a pipeline or a stage is paused, why, until when, and since when."""
    return {
        "paused": bool(row.paused),
        "reason": row.reason,
        "paused_until": row.retry_after,
        "paused_at": row.paused_at,
    }


def _held(tx: Transaction, row: StageRow, blocked_since: BlockedSince) -> Facts | None:
    """What keeps the work of a stage from beginning, beyond the pace that it is meant to have."""
    known = layout(tx)
    pipeline = known.pipelines[row.pipeline_name]
    if pipeline.paused:
        reason = f": {pipeline.reason}" if pipeline.reason else ""
        return {
            "reason": "paused",
            "text": f"pipeline {pipeline.name!r} is paused{reason}",
            "since": pipeline.paused_at,
            "until": pipeline.retry_after,
        }
    if row.paused:
        reason = f": {row.reason}" if row.reason else ""
        text = f"stage {row.name!r} is paused{reason}"
        return {"reason": "paused", "text": text, "since": row.paused_at, "until": row.retry_after}
    blocked = claim_within_limits.look(tx, row.id) if known.resources_of(row.id) else None
    if blocked is None or blocked.reason in ("rate", "units", "concurrency"):
        return None
    since = blocked_since.at(blocked.reason, blocked.resource)
    facts = {"reason": blocked.reason, "text": blocked.text, "resource": blocked.resource}
    return {**facts, "since": since, "until": blocked.until}


def _timings(buckets: dict[int, int], sums: list[int]) -> Facts:
    count = sum(buckets.values())
    if not count:
        return {"count": 0}
    return {
        "count": count,
        "mean_seconds": sums[0] / count / 1e6,
        "max_seconds": sums[1] / 1e6,
        # From buckets of growing width: right to about a tenth.
        **{f"p{share}_seconds": min(percentile_us(buckets, share), sums[1]) / 1e6 for share in (50, 90, 99)},
    }


def workers(tx: Transaction) -> list[Facts]:
    """The living, and those not yet known to be dead."""
    known = layout(tx).stages
    found = []
    for row in tx.records("read_workers"):
        stages = [known[number].label for number in codec.stored(row["stages"], [], shapes.NUMBERS) if number in known]
        same_clock = row["clock"] == tx.store.driver.clock_name
        found.append(
            {
                "id": format(row["id"], "x"),
                "name": row["name"],
                "process": row["process"].partition(" ")[0],
                "alive": same_clock and row["alive_until"] > tx.steady,
                "started_at": row["started_at"],
                "heartbeat_at": row["beat_at"],
                "lease_seconds": row["lease_us"] / 1e6,
                "stages": stages,
                "versions": _by_label(known, codec.stored(row["versions"], {}, shapes.VERSIONS)),
                **_NOTHING_REPORTED,
                **codec.stored(row["facts"], {}, shapes.WorkerFacts),
            }
        )
    return found


def _by_label(known: Mapping[int, StageRow], versions: Mapping[int, str]) -> dict[str, str]:
    return {known[number].label: version for number, version in versions.items() if number in known}
