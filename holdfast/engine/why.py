"""Why: the one thing that keeps an item from running, when it clears, and what a person can do."""

from __future__ import annotations

import math

from holdfast.engine import claim_within_limits
from holdfast.engine.fan_in import open_children
from holdfast.engine.item_stages import read_leases
from holdfast.engine.layout import layout
from holdfast.engine.on_hold import outdated_workers, spoken_of
from holdfast.engine.show_item import find_item, stages_of
from holdfast.engine.status import workers
from holdfast.model.definition_changes import release
from holdfast.model.facts import Facts
from holdfast.model.key_pattern import exactly
from holdfast.model.layout import StageRow
from holdfast.model.shell_quoting import word
from holdfast.model.states import State
from holdfast.store import Transaction

#: Of what keeps a whole stage, that which stands for a while. By the time that a retry is due there may be another worker.
_LASTING = ("paused", "cool_down", "breaker", "budget")


def _outlasts(blocked: Facts, due: int) -> bool:
    """Whether what blocks a stage will still do so when a retry is due."""
    return blocked["reason"] in _LASTING and (blocked.get("until") or math.inf) > due


class Why:
    """The one thing that keeps an item from running, and when it clears."""

    def __init__(self, tx: Transaction, key: str, pipeline: str | None) -> None:
        self._tx = tx
        self._item = find_item(tx, key, pipeline)
        self._known = layout(tx)
        self._stages = self._known.of_pipeline(self._item["pipeline"])
        self._rows = stages_of(tx, self._item, self._known)

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
        lease = read_leases(self._tx, self._item["id"], self._item["key"]).get(stage.id)
        if lease is None:
            return {"reason": "lease", "text": "it has just been finished"}
        if lease["worker"] is None:
            text = "its worker is dead; any living worker will free it within a lease"
            return {"reason": "orphaned", "text": text}
        who = f"worker {lease['worker']!r} (process {lease['process']})"
        if not lease["alive"]:
            text = f"{who} holds it and is silent; any living worker will take over within a lease"
            return {"reason": "orphaned", "text": text}
        return {
            "reason": "lease",
            "text": f"{who} is working on it, attempt {lease['attempt']} of {stage.max_attempts}",
            "since": lease["since"],
            "progress": lease["progress"],
        }

    def _pending(self, stage: StageRow, row: Facts) -> Facts:
        there = self._offering(stage)
        if (blocked := self._blocked(stage, there)) is not None:
            return blocked
        [(ahead,)] = self._tx.run(
            "ahead_of", stage=stage.id, priority=self._item["priority"], item=self._item["id"], most=1000
        )
        many = "1,000 or more" if ahead == 1000 else str(ahead)
        return {
            "reason": "queue",
            "text": f"it waits its turn, {many} before it; {len(there)} workers offer this stage",
        }

    def _offering(self, stage: StageRow) -> list[Facts]:
        return [w for w in workers(self._tx) if w["alive"] and stage.label in w["stages"]]

    def _blocked(self, stage: StageRow, there: list[Facts]) -> Facts | None:
        """What keeps every item of a stage from beginning: a pause, a guard, no worker, a resource."""
        if (still := self._is_paused(stage, there)) is not None:
            return still
        if not there:
            return {
                "reason": "no_worker",
                "text": f"no living worker offers stage {stage.name!r}",
                "do": "start one: holdfast worker FILE",
            }
        blocked = claim_within_limits.look(self._tx, stage.id) if self._known.resources_of(stage.id) else None
        if blocked is None:
            return None
        return {
            "reason": blocked.reason,
            "text": blocked.text,
            "until": blocked.until,
            "resource": blocked.resource,
        }

    def _is_paused(self, stage: StageRow, there: list[Facts]) -> Facts | None:
        """What keeps the whole stage from going on: a pause, or a guard in every worker that could."""
        pipeline = self._known.pipelines[stage.pipeline_name]
        for what, row, label in (("pipeline", pipeline, pipeline.name), ("stage", stage, stage.label)):
            if row.paused:
                return {
                    "reason": "paused",
                    "text": f"{what} {row.name!r} is paused: {row.reason or 'by a person'}",
                    "until": row.retry_after,
                    "do": f"to let it go on: holdfast resume {label}",
                }
        held = [one for w in there for one in w.get("guards", ()) if one["pipeline"] == stage.pipeline_name]
        if not held or len(held) < len(there):
            return None
        guard = f"the guard {held[0]['guard']}" if held[0]["guard"] != "guards" else "a guard"
        text = f"{guard} holds it back: {held[0]['text']}"
        return {"reason": "guard", "guard": held[0]["guard"], "text": text, "until": held[0]["until"]}

    def _retry_later(self, stage: StageRow, row: Facts) -> Facts:
        error = f"; the last error was: {row['error']}" if row["error"] else ""
        due = row["next_attempt_at"]
        blocked = self._blocked(stage, self._offering(stage))
        if blocked is not None and (due <= self._tx.now or _outlasts(blocked, due)):
            spent = f"{row['attempts']} of {stage.max_attempts} attempts are spent{error}"
            return {**blocked, "text": f"{blocked['text']}; {spent}", "until": blocked.get("until")}
        waits = "the next one waits" if due > self._tx.now else "the next one is due"
        return {
            "reason": "backoff",
            "until": due,
            "text": f"{row['attempts']} of {stage.max_attempts} attempts are spent; {waits}{error}",
            "do": f"to run it now: holdfast retry --state retry_later {self._this}",
        }

    def _on_hold(self, stage: StageRow, row: Facts) -> Facts:
        [(kind,)] = self._tx.run("kind_of_hold", stage=stage.id, item=self._item["id"])
        if kind == "version":
            return self._waits_for_version(stage, row)
        facts = {"text": f"stage {stage.name!r} is on hold: {row['error']}", "since": row["updated_at"]}
        if kind == "doubt":
            # Each call is listed with the ways to resolve it.
            return {"reason": "in_doubt", **facts}
        return {"reason": "on_hold", **facts, "do": f"to let it run: holdfast retry --state on_hold {self._this}"}

    def _waits_for_version(self, stage: StageRow, row: Facts) -> Facts:
        there = self._offering(stage)
        able = [w for w in there if stage.stands(w["versions"].get(stage.label))]
        if able and (still := self._is_paused(stage, able)) is not None:
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
