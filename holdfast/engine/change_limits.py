"""Tune: change limits and guards while workers run. A person's setting holds until the pipeline's author changes that key.

Every change raises the generation: workers pick it up with their next transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from holdfast.engine.layout import layout
from holdfast.engine.reconcile_money import count_for_new_limits
from holdfast.engine.selection import Who
from holdfast.errors import UsageError
from holdfast.model import guard_conditions as guarding
from holdfast.model import resource as limiting
from holdfast.model.did_you_mean import there_are
from holdfast.model.guard_conditions import Guards
from holdfast.model.layout import Layout
from holdfast.model.resource import ResourceSpec
from holdfast.model.tuning import Tuning, merged, own_resource
from holdfast.store import Transaction


class Declared(NamedTuple):
    """What pipelines declare: limits by name of resource, guards by name of pipeline."""

    limits: Mapping[str, Mapping[str, Any]]
    guards: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, resources: Mapping[str, Mapping[str, Any]], tunings: Mapping[str, Tuning]) -> Declared:
        limits = dict(resources)
        for tuning in tunings.values():
            limits.update(tuning.limits)
        return cls(limits, {name: tuning.guards for name, tuning in tunings.items()})


def defined_resources(tx: Transaction) -> set[str]:
    """The resources that are declared by a pipeline or tuned by a person.

    An empty row is not a definition: earlier versions made one for every name that a stage used.
    """
    rows = layout(tx).resources.values()
    return {row.spec.name for row in rows if (row.declared or row.tuned) and not row.spec.name.startswith("@")}


def is_declared(tx: Transaction, said: Declared) -> bool:
    """Whether declaring would change nothing. Takes no locks."""
    known = layout(tx)
    there = {one.spec.name: one.declared for one in known.resources.values()}
    return all(name in there and given == there[name] for name, given in _limits(known, said).items()) and all(
        name in known.pipelines and _plain(given) == known.pipelines[name].declared
        for name, given in said.guards.items()
    )


def declare(tx: Transaction, said: Declared) -> list[str]:
    """Save what pipelines declare; return the names of what changed. The transaction must be exclusive."""
    changed: list[str] = []
    known = layout(tx)
    for name, given in _limits(known, said).items():
        row = known.resource(name)
        read = partial(ResourceSpec.read, name)
        read(given)
        if row is None:
            tx.run("add_resource", name=name, spec=_text(given), now=tx.now)
        elif row.declared != given:
            tuned = _kept(row.tuned, row.declared, given, read)
            tx.run("change_resource", name=name, spec=_text(given), tuned=_text(tuned), now=tx.now)
        else:
            continue
        changed.append(name)
    for name, conditions in said.guards.items():
        pipeline, given = known.pipelines.get(name), _plain(conditions)
        if pipeline is not None and pipeline.declared != given:
            Guards.read(given)
            tuned = _kept(pipeline.tuned, pipeline.declared, given, Guards.read)
            tx.run("set_guards", pipeline=pipeline.id, guards=_text(given), tuned=_text(tuned))
            changed.append(name)
    if changed:
        _tell(tx, known, "declared", changed=changed)
    return changed


def tune(tx: Transaction, pipeline: str, changes: Mapping[str, Any], who: Who) -> dict[str, Any]:
    """Set keys of a pipeline: limits of its own (`rate`), of a stage or a resource (`extract.concurrency`, `gemini.rate`), or
    guards (`hours`). None removes an earlier setting. Returns the settings now in force for these keys."""
    known = layout(tx)
    row = known.pipeline(pipeline)
    limits: dict[str, dict[str, Any]] = {}
    guards: dict[str, Any] = {}
    places: dict[str, tuple[str, str]] = {}
    hours = "hours" in changes or row.guards.hours is not None
    for key, value in changes.items():
        name, rest = _place(known, pipeline, key)
        if name is None and rest in guarding.KEYS and (rest not in limiting.KEYS or hours):
            guards[rest] = value
        else:
            places[key] = (name or own_resource(pipeline), rest)
            _set(limits.setdefault(places[key][0], {}), rest, value)
    tuned_limits = {name: _tune_resource(tx, name, given) for name, given in limits.items()}
    in_force: dict[str, Any] = {key: _get(tuned_limits[name], rest) for key, (name, rest) in places.items()}
    if guards:
        tuned = _plain(_with(row.tuned, guards))
        together = merged(row.declared, tuned)
        Guards.read(together)
        tx.run("set_guards", pipeline=row.id, guards=_text(row.declared), tuned=_text(tuned))
        in_force.update({key: together.get(key) for key in guards})
    _tell(tx, known, "tuned", pipeline=row.id, changes=_plain(changes), by=who.name, reason=who.reason)
    return in_force


def _place(known: Layout, pipeline: str, key: object) -> tuple[str | None, str]:
    """What a key belongs to: the limits of a stage or a resource, or None for the pipeline; and the key itself."""
    if not isinstance(key, str):
        raise UsageError(f"{key!r} is no key; write it like 'rate' or 'extract.rate'")
    for at in (at for at in reversed(range(len(key))) if key[at] == "."):
        head, rest = key[:at], key[at + 1 :]
        if rest.partition(".")[0] in limiting.KEYS:
            stage = known.find(pipeline, head)
            if stage is not None and stage.active:
                return own_resource(pipeline, head), rest
            if known.resource(head) is not None and not head.startswith("@"):
                return head, rest
    if key.partition(".")[0] in limiting.KEYS or key in guarding.KEYS:
        return None, key
    whose, dot, what = key.rpartition(".")
    if dot and what in limiting.KEYS:
        stages = [row.name for row in known.of_pipeline(pipeline) if row.active]
        shared = sorted(row.spec.name for row in known.resources.values() if not row.spec.name.startswith("@"))
        raise UsageError(
            f"{key!r}: pipeline {pipeline!r} has no stage {whose!r}, and there is no such resource; "
            f"{there_are(whose, (*stages, *shared))}"
        )
    raise UsageError(
        f"{key!r} is unknown: give a limit or a guard, or one of a stage or resource, like 'extract.rate'; "
        f"{there_are(what or key, (*limiting.KEYS, *guarding.KEYS))}"
    )


def _tune_resource(tx: Transaction, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    row = layout(tx).resource(name)
    declared = row.declared if row is not None else {}
    # Check the value as JSON will return it: refuse it now, not in every worker later.
    tuned = _plain(_with(row.tuned if row is not None else {}, given))
    together = merged(declared, tuned)
    ResourceSpec.read(name, together)
    if row is None:
        tx.run("add_resource", name=name, spec="{}", now=tx.now)
    tx.run("change_resource", name=name, spec=_text(declared), tuned=_text(tuned), now=tx.now)
    return together


def _limits(known: Layout, said: Declared) -> dict[str, dict[str, Any]]:
    """The declared limits. A pipeline's own limits that are no longer declared are removed."""
    own = {one.spec.name for one in known.resources.values() if one.spec.name.startswith("@")}
    gone: dict[str, dict[str, Any]] = {name: {} for name in own if name[1:].partition("/")[0] in said.guards}
    return {**gone, **{name: _plain(given) for name, given in said.limits.items()}}


def _get(place: Mapping[str, Any], key: str) -> Any:
    head, _, rest = key.partition(".")
    found = place.get(head)
    return _get(found, rest) if rest and isinstance(found, Mapping) else None if rest else found


def _set(place: dict[str, Any], key: str, value: Any) -> None:
    """`breaker.failures` is a key within a key."""
    head, _, rest = key.partition(".")
    if rest:
        within = place.setdefault(head, {})
        if not isinstance(within, dict):
            raise UsageError(f"{key!r}: {head!r} is also set to {within!r}")
        within[rest] = value
    else:
        place[head] = value


def _with(old: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The earlier settings with these changes; None removes one."""
    new = dict(old)
    for key, value in changes.items():
        if isinstance(value, Mapping):
            before = new.get(key)
            value = {
                k: v for k, v in {**(before if isinstance(before, dict) else {}), **value}.items() if v is not None
            }
        if value is None or value == {}:
            new.pop(key, None)
        else:
            new[key] = value
    return new


def _kept(
    tuned: Mapping[str, Any], before: Mapping[str, Any], now: Mapping[str, Any], read: Callable[[dict[str, Any]], Any]
) -> dict[str, Any]:
    """A person's settings, without the keys whose declaration has changed; none if the rest does not fit the new
    declaration."""
    kept = {key: value for key, value in tuned.items() if before.get(key) == now.get(key)}
    try:
        read(merged(now, kept))
    except UsageError:
        return {}
    return kept


def _tell(tx: Transaction, before: Layout, event: str, **facts: Any) -> None:
    """Raise the generation, give new budgets what was spent before, and record the change. Raising one pipeline is enough: the
    generation is the sum over all."""
    for row in before.pipelines.values():
        tx.run("raise_generation", pipeline=row.id, now=tx.now)
        break
    # What is read from here on belongs to a generation that is not committed yet, and must not be cached.
    tx.generation = -1
    count_for_new_limits(tx, before)
    tx.record(event, **facts)
    tx.tell_idle_workers()


def _plain(value: Any) -> Any:
    """The value as JSON returns it."""
    return msgspec.json.decode(_text(value))


def _text(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"{value!r} cannot be kept: {error}") from None
