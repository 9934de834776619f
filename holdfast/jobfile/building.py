"""Build the values of the model from a checked tree. `find` supplies the functions, so that the same code can check a file
with stand-ins before any user code runs, and build it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from holdfast.errors import DefinitionError, HoldfastError, UsageError
from holdfast.jobfile.handlers import Handlers, UserFunction, takes
from holdfast.jobfile.keys import is_dotted
from holdfast.jobfile.problems import Position, Problems, below
from holdfast.jobfile.reading import Node
from holdfast.jobfile.shapes import discreet
from holdfast.model.backoff import Backoff
from holdfast.model.durations import seconds
from holdfast.model.money import micros
from holdfast.model.stage import MAX_RERUNS_PER_HOUR, PipelineSpec, StageSpec
from holdfast.model.typed import data_type
from holdfast.providers.prices import Prices


class Find(Protocol):
    def __call__(self, node: Node, path: str, /, *, a_type: bool = False) -> Any:
        """The function, or the type, that a node names."""
        ...


def stand_in(item: Any, ctx: Any) -> None:
    """Stands for a function that is not loaded yet."""


def finder(handlers: Handlers, problems: Problems) -> Find:
    """Find functions and types by their paths. A missing one is a problem; a stand-in takes the place of a function, and
    nothing that of a type."""

    def find(node: Node, path: str, /, *, a_type: bool = False) -> Any:
        try:
            return handlers.find_type(node.value) if a_type else handlers.find(node.value)
        except DefinitionError as error:
            problems.add(node.place, path, discreet(node, str(error)))
            return None if a_type else stand_in

    return find


def build_stage(name: str, node: Node, path: str, find: Find, **shared: Any) -> StageSpec:
    """One stage; `shared` is what the pipeline says for all of its stages. Raises what the model says about it."""
    given = node.plain()

    def function(key: str) -> Any:
        one = node.get(key)
        return None if one is None else find(one, below(path, key))

    units, returns = node.get("units"), node.get("returns")
    return StageSpec(
        name=name,
        handler=function("handler"),
        after=_several(given.get("after", ())),
        version=given.get("version", "1"),
        max_attempts=given.get("max_attempts", 5),
        timeout_seconds=seconds(given["timeout"]) if "timeout" in given else None,
        batch=given.get("batch"),
        isolate=given.get("isolate"),
        backoff=_backoff(given.get("backoff", {})),
        compatible_from=_several(given.get("compatible_from", ())),
        normalise=function("normalise"),
        after_children=given.get("after_children"),
        resources=_several(given.get("resource", ())),
        estimate=function("estimate") if is_dotted(str(given.get("estimate", ""))) else _amount(given.get("estimate")),
        max_reruns_per_hour=given.get("max_reruns_per_hour", MAX_RERUNS_PER_HOUR),
        units={unit: find(one, below(below(path, "units"), unit)) for unit, one in units.items()} if units else {},
        max_cost=_amount(given.get("max_cost")),
        renamed_from=given.get("renamed_from"),
        reads=_several(given["reads"]) if "reads" in given else None,
        keep_previous=given.get("keep_previous", False),
        **shared,
        returns=None if returns is None else find(returns, below(path, "returns"), a_type=True),
    )


def build_pipeline(
    name: str, node: Node, path: str, find: Find, problems: Problems, origin: str
) -> PipelineSpec | None:
    """A pipeline of a checked file. Only the signatures of its functions can still be wrong."""
    stages = []
    data = build_data(node.get("data"), below(path, "data"), find, problems)
    prices = build_prices(node.get("prices"), below(path, "prices"), problems)
    for stage, one in node.value["stages"].items():
        where = below(below(path, "stages"), stage)
        try:
            stages.append(build_stage(stage, one, where, find, data=data, prices=prices))
        except HoldfastError as error:
            said = without_stage(str(error), stage)
            key = "returns" if said.startswith("returns: ") else "handler"
            problems.add(one.value[key].place, below(where, key), said.removeprefix("returns: "))
    if len(stages) < len(node.value["stages"].value):
        return None
    try:
        return PipelineSpec.build(name, stages, origin, data)
    except HoldfastError as error:
        problems.add(node.key_place, path, str(error))
        return None


def build_prices(node: Node | None, path: str, problems: Problems) -> Mapping[str, Any]:
    """What models cost, as the file says it."""
    given: Mapping[str, Any] = {} if node is None else node.plain()
    try:
        Prices.read(given, where=path)
    except UsageError as error:
        assert node is not None
        problems.add(key_of(node, path, str(error)), path, str(error).removeprefix(f"{path}: "))
        return {}
    return given


def build_data(node: Node | None, path: str, find: Find, problems: Problems) -> Any:
    """The type of the data of a pipeline's items, if it names one that can be."""
    declared = None if node is None else find(node, path, a_type=True)
    try:
        data_type(declared, path)
    except DefinitionError as error:
        assert node is not None
        problems.add(node.place, path, discreet(node, str(error).removeprefix(f"{path}: ")))
        return None
    return declared


def build_merge(node: Node, path: str, find: Find, problems: Problems) -> UserFunction:
    merge: UserFunction = find(node, path)
    if not takes(merge, 2):
        what = "the function cannot be called as merge(old, new), expected one that takes these two"
        problems.add(node.place, path, what)
    return merge


def read_by(read: Callable[..., Any], name: str, node: Node, path: str, problems: Problems, **more: Any) -> Any:
    """Read a source or an alert with the given reader. What it refuses is a problem at its key."""
    try:
        return read(name, node.plain(), where=path, **more)
    except HoldfastError as error:
        problems.add(key_of(node, path, str(error)), path, discreet(node, str(error).removeprefix(f"{path}: ")))
        return None


def key_of(node: Node, path: str, said: str) -> Position:
    """The position to report: the key that the error names first, or the key of the mapping itself."""
    rest = said.removeprefix(f"{path}: ").partition(":")
    inner = node.get(rest[0]) if rest[1] else None
    return inner.key_place if inner is not None else node.key_place


def without_stage(said: str, stage: str) -> str:
    return said.removeprefix(f"stage {stage!r}: ")


def _several(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _amount(value: Any) -> int | None:
    return None if value is None else micros(value)


def _backoff(given: dict[str, Any]) -> Backoff:
    values: dict[str, float] = {}
    for key, target in (("first", "first_seconds"), ("most", "most_seconds")):
        if key in given:
            values[target] = seconds(given[key])
    if "factor" in given:
        values["factor"] = given["factor"]
    return Backoff(**values)
