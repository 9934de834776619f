"""Every question of the command line and the dashboard, answered from one unchanging view of the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.engine import claim_within_limits, ledger
from holdfast.engine.events import count_events as count_events
from holdfast.engine.events import events as events
from holdfast.engine.fan_in import open_children
from holdfast.engine.finish import bucket_middle_us
from holdfast.engine.item_stages import read_item_stages
from holdfast.engine.layout import layout
from holdfast.engine.on_hold import outdated_workers, spoken_of
from holdfast.engine.pages import items as items
from holdfast.errors import UsageError
from holdfast.model import codec
from holdfast.model.faults import cause_of
from holdfast.model.history import MEANING, SENT_BACK
from holdfast.model.layout import Layout, StageRow
from holdfast.model.paid import CHARGED
from holdfast.model.pattern import exactly
from holdfast.model.pipeline_changes import release
from holdfast.model.shell import word
from holdfast.model.states import State
from holdfast.model.urls import as_key
from holdfast.store import Transaction

Facts = dict[str, Any]

#: How many bad stages of items are looked at for the most frequent errors, for each stage and state; and how many errors, and
#: items, are reported.
LOOKED_AT = 500
MOST_ERRORS = 5
#: How many of those that are next in a queue are asked since when they wait.
HEAD = 100
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
    for row in sorted(known.stages.values(), key=lambda row: (row.pipeline_name, row.position)):
        pipeline = pipelines.setdefault(
            row.pipeline_name, {"name": row.pipeline_name, **_four_facts(known, row), "stages": [], "removed": []}
        )
        counts = {state: n for state, n in sorted(states.get(row.id, {}).items()) if n}
        facts: Facts = {"name": row.name, "version": row.version, "after": list(row.after), "states": counts}
        if not row.active:
            pipeline["removed"].append(facts)
            continue
        facts["timings"] = _timings(durations.get(row.id, {}), sums.get(row.id, [0, 0]))
        facts["backfilling"] = row.backfill_next is not None
        facts["on_hold"] = _on_hold(tx, row) if counts.get(State.ON_HOLD) or row.hold_next else []
        waiting = bool(counts.get(State.PENDING))
        facts["held"] = _held(tx, row) if waiting else None
        facts["pending_since"] = tx.run("waiting_since", stage=row.id, most=HEAD)[0][0] if waiting else None
        pipeline["stages"].append(facts)
    return list(pipelines.values())


def _on_hold(tx: Transaction, stage: StageRow) -> list[Facts]:
    """Why work of a stage is on hold, each reason once, with what lets it run; as far as a look at some of it tells."""
    found: dict[str, Facts] = {}
    for kind, reason in tx.run("reasons_of_holds", stage=stage.id, most=LOOKED_AT):
        do = release(stage.pipeline_name, stage.name)
        if kind == "version":
            reason = f"it waits for a worker with version {stage.version}"
        elif kind == "doubt":
            reason = "paid calls are in doubt, and a person is to say what became of them"
            where = f"--pipeline {word(stage.pipeline_name)} --stage {word(stage.name)}"
            do = f"holdfast resolve {where} --not-charged|--charged AMOUNT"
        found.setdefault(reason, {"kind": kind, "reason": reason, "do": do})
    return list(found.values())


def bad_ends(tx: Transaction, places: Iterable[tuple[str, str, str]]) -> tuple[list[Facts], list[Facts]]:
    """The most frequent errors of what ended badly, given as (pipeline, stage, state), and the first few of those that did.
    So many of each are looked at, however many there are; `more` says that there are others."""
    found: dict[tuple[str, ...], Facts] = {}
    first: list[Facts] = []
    for pipeline, stage, state in places:
        where = {"pipeline": pipeline, "stage": stage}
        rows = items(tx, **where, states=[State(state)], key=None, error=None, after=0, most=LOOKED_AT)
        first += rows[: MOST_ERRORS - len(first)]
        for row in rows:
            error = (row["error"] or "no error was recorded").partition("\n")[0]
            like = (pipeline, stage, state, *cause_of(error, None, row["key"]))
            entry = found.setdefault(like, {**where, "state": state, "error": error, "key": row["key"], "count": 0})
            entry["count"] += 1
            entry["more"] = len(rows) == LOOKED_AT
    return sorted(found.values(), key=lambda one: -one["count"])[:MOST_ERRORS], first


def _four_facts(known: Layout, row: StageRow) -> Facts:
    """Whether a pipeline is paused, why, until when, and since when."""
    pipeline = known.pipelines[row.pipeline_name]
    return {
        "paused": bool(pipeline.paused),
        "reason": pipeline.reason,
        "paused_until": pipeline.retry_after,
        "paused_at": pipeline.paused_at,
    }


def _held(tx: Transaction, row: StageRow) -> Facts | None:
    """What keeps the work of a stage from beginning, beyond the pace that it is meant to have."""
    known = layout(tx)
    pipeline = known.pipelines[row.pipeline_name]
    if pipeline.paused:
        reason = f": {pipeline.reason}" if pipeline.reason else ""
        return {
            "reason": "paused",
            "text": f"pipeline {pipeline.name!r} is paused{reason}",
            "until": pipeline.retry_after,
        }
    if row.paused:
        reason = f": {row.reason}" if row.reason else ""
        return {"reason": "paused", "text": f"stage {row.name!r} is paused{reason}", "until": row.retry_after}
    blocked = claim_within_limits.look(tx, row.id) if known.resources_of(row.id) else None
    if blocked is None or blocked.reason in ("rate", "units", "concurrency"):
        return None
    return {"reason": blocked.reason, "text": blocked.text, "until": blocked.until}


def _timings(buckets: dict[int, int], sums: list[int]) -> Facts:
    count = sum(buckets.values())
    if not count:
        return {"count": 0}
    return {
        "count": count,
        "mean_seconds": sums[0] / count / 1e6,
        "max_seconds": sums[1] / 1e6,
        # From buckets of growing width: right to about a tenth.
        **{f"p{share}_seconds": min(_percentile(buckets, share, count), sums[1]) / 1e6 for share in (50, 90, 99)},
    }


def _percentile(buckets: dict[int, int], share: int, count: int) -> float:
    seen = 0
    for bucket, n in sorted(buckets.items()):
        seen += n
        if seen * 100 >= share * count:
            return bucket_middle_us(bucket)
    return 0.0


def workers(tx: Transaction) -> list[Facts]:
    """The living, and those not yet known to be dead."""
    known = layout(tx).stages
    found = []
    for row in tx.records("read_workers"):
        stages = [known[number].label for number in codec.stored(row["stages"], []) if number in known]
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
                "versions": _by_label(known, codec.stored(row["versions"], {})),
                **_NOTHING_REPORTED,
                **codec.stored(row["facts"], {}),
            }
        )
    return found


def _by_label(known: Mapping[int, StageRow], versions: Mapping[str, str]) -> dict[str, str]:
    return {known[int(number)].label: version for number, version in versions.items() if int(number) in known}


def find_item(tx: Transaction, key: str, pipeline: str | None) -> Facts:
    """The item of this key; an error if there is none, or one in several pipelines."""
    if pipeline is not None:
        layout(tx).pipeline(pipeline)
    found = tx.run("find_item", key=key, pipeline=pipeline)
    if not found and as_key(key) != key:
        found = tx.run("find_item", key=as_key(key), pipeline=pipeline)
    if not found:
        where = f" in pipeline {pipeline!r}" if pipeline else ""
        raise UsageError(f"there is no item {key!r}{where}")
    if len(found) > 1:
        several = ", ".join(row[2] for row in found)
        raise UsageError(f"the key {key!r} is in several pipelines ({several}): say which with --pipeline")
    names = ("id", "pipeline_id", "pipeline", "key", "data", "priority", "created_at", "updated_at")
    return dict(zip(names, found[0], strict=True))


def show(tx: Transaction, key: str, pipeline: str | None) -> Facts:
    """One item: its data, where each stage stands, and its history."""
    item = find_item(tx, key, pipeline)
    known = layout(tx)
    results = {row["stage"]: row for row in tx.records("item_outcomes", item=item["id"])}
    rows = _stages_of(tx, item, known)
    stages = []
    for row in known.of_pipeline(item["pipeline"]):
        facts: Facts = {"stage": row.name, "state": None, "attempts": 0}
        if row.id in rows:
            told = {name: value for name, value in rows[row.id].items() if name not in ("item", "stage")}
            facts = {"stage": row.name, **told}
        if row.id in results:
            outcome = results[row.id]
            facts["version"] = outcome["version"]
            if outcome["result"] is not None:
                facts["result"] = codec.shown(outcome["result"])
        stages.append(facts)
    [(_, item_status)] = tx.run("item_status", items=[item["id"]])
    return {
        "pipeline": item["pipeline"],
        "key": item["key"],
        "status": item_status,
        "data": codec.shown(item["data"]),
        "priority": item["priority"],
        "created_at": item["created_at"],
        "updated_at": item["updated_at"],
        "stages": stages,
        "history": history(tx, item, known),
    }


def _stages_of(tx: Transaction, item: Facts, known: Layout) -> dict[int, Facts]:
    """By stage: where an item stands in those that its pipeline has and that have begun."""
    found = read_item_stages(tx, [item["id"]], [row.id for row in known.of_pipeline(item["pipeline"])])
    for row in found:
        if row["updated_at"] is None:
            row["updated_at"] = item["updated_at"]
    return {row["stage"]: row for row in found}


def history(tx: Transaction, item: Facts, known: Layout) -> list[Facts]:
    """All that happened to an item, oldest first: its events and its outcomes, read as one.

    Events come in the order of their numbers, which no clock that is set can turn. A stage that passes for the first
    time leaves none, and is told by its outcome.
    """
    told: list[Facts] = [{"at": item["created_at"], "event": "added"}]
    for event in events(tx, item=item["id"], most=1000):
        money = {name: event[name] for name in ("amount", "resource") if event[name] is not None}
        facts = {"at": event["at"], "event": event["event"], "stage": event["stage"], **money}
        told.append({**event["data"], **facts})
    for call in ledger.calls_of(tx, item["id"]):
        if call["state"] in CHARGED:
            _insert_by_time(told, _as_event(call, known))
    said = {(one.get("stage"), one["event"]) for one in told}
    outcomes = tx.records("item_outcomes", item=item["id"])
    # The last first: of those at one instant, each goes before the ones that are in place.
    for outcome in sorted(outcomes, key=lambda o: (o["ended_at"], known.stages[o["stage"]].position), reverse=True):
        stage = known.stages[outcome["stage"]].name
        name = {"done": "completed"}.get(outcome["state"], outcome["state"])
        if (stage, name) not in said:
            facts = {"attempt": outcome["attempts"], "version": outcome["version"]}
            place = _place(told, stage, outcome["ended_at"])
            told.insert(place, {"at": outcome["ended_at"], "event": name, "stage": stage, **facts})
    return told


def _as_event(call: Facts, known: Layout) -> Facts:
    """A payment as part of an item's history."""
    name = {"memo": call["name"]} if call["name"] else {}
    resource = {"resource": call["resource"]} if call["resource"] else {}
    stage = known.stages[call["stage"]].name if call["stage"] in known.stages else None
    facts = codec.stored(call["facts"], {})
    return {**facts, **name, "at": call["at"], "event": "cost", "stage": stage, "amount": call["amount"], **resource}


def _insert_by_time(told: list[Facts], one: Facts) -> None:
    place = len(told)
    while place > 1 and told[place - 1]["at"] >= one["at"]:
        place -= 1
    told.insert(place, one)


def _place(told: list[Facts], stage: str, ended_at: int) -> int:
    """Where an outcome belongs that no event tells of: behind its attempts, before all that sent its stage back, and in
    between as its time says."""
    mine = [(place, one["event"]) for place, one in enumerate(told) if one.get("stage") == stage]
    last = min((place for place, event in mine if event in SENT_BACK), default=len(told))
    place = 1 + max((place for place, event in mine if event in MEANING and place < last), default=0)
    while place < last and told[place]["at"] < ended_at:
        place += 1
    return place


class Why:
    """The one thing that keeps an item from running, and when it clears."""

    def __init__(self, tx: Transaction, key: str, pipeline: str | None) -> None:
        self._tx = tx
        self._item = find_item(tx, key, pipeline)
        self._known = layout(tx)
        self._stages = self._known.of_pipeline(self._item["pipeline"])
        self._rows = _stages_of(tx, self._item, self._known)

    @property
    def _this(self) -> str:
        """Options that choose this item and no other. An item of another pipeline may have the same key."""
        return f"--pipeline {word(self._item['pipeline'])} --key {word(exactly(self._item['key']))}"

    def answer(self) -> Facts:
        """`reason` is a word to act on, `text` a sentence, `until` when it clears by itself, `do` what a person can do."""
        full = self._tx.store.driver.cannot_write()
        for state, explain in (
            (State.IN_PROGRESS, self._in_progress),
            (State.PENDING, self._pending),
            (State.RETRY_LATER, self._retry_later),
            (State.ON_HOLD, self._on_hold),
        ):
            for stage in self._stages:
                row = self._rows.get(stage.id)
                if row is not None and row["state"] == state:
                    said = {"reason": "store", "text": full} if full else explain(stage, row)
                    return self._facts(stage, row, said)
        for stage in self._stages:
            row = self._rows.get(stage.id)
            if row is not None and row["state"] in (State.FAILED, State.EXHAUSTED, State.CANCELLED):
                return self._facts(stage, row, self._ended_badly(stage, row))
        for stage in self._stages:
            if stage.id not in self._rows and stage.after_children is not None:
                n = len(open_children(self._tx, stage.id, [self._item["id"]]).get(self._item["id"], ()))
                many = "1 child" if n == 1 else f"{n} children"
                text = f"stage {stage.name!r} waits for {many} in {stage.after_children!r}"
                return self._facts(stage, {"state": None}, {"reason": "children", "text": text})
        for stage in self._stages:
            if stage.id not in self._rows and stage.hold_next is not None:
                text = f"stage {stage.name!r} is being put on hold: {stage.hold_reason}"
                do = f"to let it run: {release(stage.pipeline_name, stage.name)}"
                return self._facts(stage, {"state": None}, {"reason": "on_hold", "text": text, "do": do})
        for stage in self._stages:
            if stage.id not in self._rows and stage.backfill_next is not None:
                text = f"stage {stage.name!r} is new and is being back-filled"
                return self._facts(stage, {"state": None}, {"reason": "backfill", "text": text})
        return {
            "pipeline": self._item["pipeline"],
            "key": self._item["key"],
            "stage": None,
            "state": None,
            "reason": "done",
            "text": "every stage is done",
            "until": None,
            "do": None,
        }

    def _facts(self, stage: StageRow, row: Facts, said: Facts) -> Facts:
        return {
            "pipeline": self._item["pipeline"],
            "key": self._item["key"],
            "stage": stage.name,
            "state": row["state"],
            "until": None,
            "do": None,
            **said,
        }

    def _in_progress(self, stage: StageRow, row: Facts) -> Facts:
        for lease in self._tx.records("item_lease", item=self._item["id"]):
            if lease["stage"] != stage.id:
                continue
            if lease["name"] is None:
                return {
                    "reason": "orphaned",
                    "text": "its worker is dead; any living worker will free it within a lease",
                }
            who = f"worker {lease['name']!r} (process {lease['process'].partition(' ')[0]})"
            alive = lease["clock"] == self._tx.store.driver.clock_name and lease["alive_until"] > self._tx.steady
            if not alive:
                return {
                    "reason": "orphaned",
                    "text": f"{who} holds it and is silent; any living worker will take over within a lease",
                }
            notes = [
                note
                for note in codec.stored(lease["facts"], {}).get("progress", [])
                if note["item"] == self._item["key"]
            ]
            return {
                "reason": "lease",
                "text": f"{who} is working on it, attempt {lease['attempt']} of {stage.max_attempts}",
                "since": lease["since"],
                "progress": notes[0] if notes else None,
            }
        return {"reason": "lease", "text": "it has just been finished"}

    def _pending(self, stage: StageRow, row: Facts) -> Facts:
        there = [w for w in workers(self._tx) if w["alive"] and stage.label in w["stages"]]
        if (still := self._stands_still(stage, there)) is not None:
            return still
        offering = [w["name"] for w in there]
        if not offering:
            return {
                "reason": "no_worker",
                "text": f"no living worker offers stage {stage.name!r}",
                "do": "start one: holdfast worker FILE",
            }
        if self._known.resources_of(stage.id) and (blocked := claim_within_limits.look(self._tx, stage.id)) is not None:
            return {
                "reason": blocked.reason,
                "text": blocked.text,
                "until": blocked.until,
                "resource": blocked.resource,
            }
        [(ahead,)] = self._tx.run(
            "ahead_of", stage=stage.id, priority=self._item["priority"], item=self._item["id"], most=1000
        )
        many = "1,000 or more" if ahead == 1000 else str(ahead)
        return {
            "reason": "queue",
            "text": f"it waits its turn, {many} before it; {len(offering)} workers offer this stage",
        }

    def _stands_still(self, stage: StageRow, there: list[Facts]) -> Facts | None:
        """What keeps the whole stage from going on: a pause, or a guard in every worker that could."""
        pipeline = self._known.pipelines[stage.pipeline_name]
        if pipeline.paused:
            return {
                "reason": "paused",
                "text": f"pipeline {pipeline.name!r} is paused: {pipeline.reason or 'by a person'}",
                "until": pipeline.retry_after,
                "do": f"to let it go on: holdfast resume {pipeline.name}",
            }
        if stage.paused:
            return {
                "reason": "paused",
                "text": f"stage {stage.name!r} is paused: {stage.reason or 'by a person'}",
                "until": stage.retry_after,
                "do": f"to let it go on: holdfast resume {stage.label}",
            }
        held = [one for w in there for one in w.get("guards", ()) if one["pipeline"] == stage.pipeline_name]
        if not held or len(held) < len(there):
            return None
        guard = f"the guard {held[0]['guard']}" if held[0]["guard"] != "guards" else "a guard"
        text = f"{guard} holds it back: {held[0]['text']}"
        return {"reason": "guard", "guard": held[0]["guard"], "text": text, "until": held[0]["until"]}

    def _retry_later(self, stage: StageRow, row: Facts) -> Facts:
        error = f"; the last error was: {row['error']}" if row["error"] else ""
        return {
            "reason": "backoff",
            "until": row["next_attempt_at"],
            "text": f"{row['attempts']} of {stage.max_attempts} attempts are spent; the next one waits{error}",
            "do": f"to run it now: holdfast retry --state retry_later {self._this}",
        }

    def _on_hold(self, stage: StageRow, row: Facts) -> Facts:
        [(kind,)] = self._tx.run("kind_of_hold", stage=stage.id, item=self._item["id"])
        if kind == "version":
            return self._waits_for_version(stage, row)
        facts = {"text": f"stage {stage.name!r} is on hold: {row['error']}", "since": row["updated_at"]}
        if kind == "doubt":
            # How to settle the calls is told with each of them.
            return {"reason": "in_doubt", **facts}
        return {"reason": "on_hold", **facts, "do": f"to let it run: holdfast retry --state on_hold {self._this}"}

    def _waits_for_version(self, stage: StageRow, row: Facts) -> Facts:
        there = [w for w in workers(self._tx) if w["alive"] and stage.label in w["stages"]]
        able = [w for w in there if stage.stands(w["versions"].get(stage.label))]
        if able and (still := self._stands_still(stage, able)) is not None:
            return {"since": row["updated_at"], **still}
        if able:
            text = f"it waits its turn at a worker with version {stage.version} of stage {stage.name!r}"
        else:
            text = f"it waits for a worker with version {stage.version} of stage {stage.name!r}"
        if outdated := outdated_workers(self._tx, stage):
            text += f"; {spoken_of(outdated)}"
        return {
            "reason": "version",
            "text": text,
            "since": row["updated_at"],
            "do": f"to take it back: holdfast cancel --state on_hold {self._this}; "
            f"to have it done by any worker: holdfast retry --state on_hold {self._this}",
        }

    def _ended_badly(self, stage: StageRow, row: Facts) -> Facts:
        error = f": {row['error']}" if row["error"] else ""
        memos = self._tx.records("item_memos", item=self._item["id"], stages=[stage.id])
        names = ", ".join(repr(memo["name"]) for memo in memos if memo["state"] == "done")
        text = f"stage {stage.name!r} ended {row['state']}{error}"
        do = f"to send it back: holdfast retry {self._this}"
        if names:
            text += f"; a retry uses the recorded answer of {names} again"
            do += f"; to have it called, and paid, again: holdfast retry --forget {self._this}"
        return {"reason": str(row["state"]), "text": text, "do": do}
