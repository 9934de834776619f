"""A stage and a pipeline as their author wrote them: checked when built, never changed afterwards."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import update_wrapper
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec

from holdfast.errors import DefinitionError, UsageError
from holdfast.model import codec
from holdfast.model.annotations import item_type, types_of
from holdfast.model.backoff import Backoff
from holdfast.model.declared_reads import is_path
from holdfast.model.did_you_mean import did_you_mean, there_are
from holdfast.model.functions import is_async
from holdfast.model.typed import ValueType, data_type, declared_type

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    R = TypeVar("R", covariant=True)
    #: What `ctx.result` returns: mostly what the function does.
    V = TypeVar("V", covariant=True, default=R)
else:
    from typing import TypeVar

    R = TypeVar("R", covariant=True)
    V = TypeVar("V", covariant=True)

Handler = Callable[..., Any]
P = ParamSpec("P")

#: Unless a stage says something else.
MAX_RERUNS_PER_HOUR = 1000

_NAME = re.compile(r"[^\W\d][\w.-]{0,99}")


@dataclass(frozen=True, slots=True)
class StageSpec:
    """A named step that every item passes: a function with settings."""

    name: str
    handler: Handler
    after: tuple[str, ...] = ()
    version: str = "1"
    max_attempts: int = 5
    timeout_seconds: float | None = None
    batch: int | None = None
    isolate: Literal["process"] | None = None
    backoff: Backoff = field(default_factory=Backoff)
    #: Earlier versions whose results are still valid.
    compatible_from: tuple[str, ...] = ()
    #: Applied to a result before it is compared with the previous one, so that noise makes no difference.
    normalise: Callable[[Any], Any] | None = None
    #: Begin when all items that this one submitted as children to that pipeline have ended.
    after_children: str | None = None
    #: The resources that an attempt uses, what it is expected to cost (an amount in millionths, or a function of the item
    #: that returns an amount), and how many units of something it is expected to use, by functions of the item.
    resources: tuple[str, ...] = ()
    estimate: int | Callable[[Any], Any] | None = None
    units: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    #: What one item may cost at this stage, in millionths.
    max_cost: int | None = None
    #: What models cost, as its author wrote it; see `providers.prices`.
    prices: Mapping[str, Any] = field(default_factory=dict)
    #: Its former name. It keeps the results, records and history of that stage.
    renamed_from: str | None = None
    #: How often per hour items may rerun each other here without new data.
    max_reruns_per_hour: int = MAX_RERUNS_PER_HOUR
    #: What it reads of an item's data, as dotted paths; None for everything. Its results depend on nothing else in the data.
    reads: tuple[str, ...] | None = None
    #: Whether a result that a rerun replaces is kept beside the new one.
    keep_previous: bool = False
    #: The type of the data of its pipeline's items, and of its own results, as their author names them.
    data: Any = None
    returns: Any = None
    is_async: bool = field(init=False, repr=False, compare=False)
    #: What its handler gets as `item.data`, and what its results are checked against; None for what is in the JSON.
    item_type: ValueType | None = field(init=False, repr=False, compare=False)
    result_type: ValueType | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        where = f"stage {self.name!r}"
        check_name(self.name, "stage")
        if isinstance(self.handler, Stage):
            # A stage of another pipeline, or one named in a job file: take its function.
            if self.returns is None:
                object.__setattr__(self, "returns", self.handler.spec.returns)
            object.__setattr__(self, "handler", self.handler.spec.handler)
        _check_versions(self, where)
        _check_attempts(self, where)
        _check_order(self, where)
        _check_costs(self, where)
        if self.normalise is not None and not callable(self.normalise):
            raise DefinitionError(f"{where}: normalise {self.normalise!r} is not a function")
        if self.reads is not None and not all(map(is_path, self.reads)):
            raise DefinitionError(
                f'{where}: reads={list(self.reads)!r}: give paths into the data, like "url" or "meta.html"'
            )
        if not isinstance(self.keep_previous, bool):
            raise DefinitionError(f"{where}: keep_previous {self.keep_previous!r} is neither True nor False")
        _check_signature(self.handler, where)
        object.__setattr__(self, "is_async", is_async(self.handler))
        data, returns = types_of(self.handler, self.batch is not None)
        object.__setattr__(self, "item_type", item_type(self.data, data, where))
        object.__setattr__(self, "result_type", declared_type(self.returns, f"{where}: returns") or returns)

    @property
    def type(self) -> str | None:
        """The fingerprint of the type of its results; None if they have none."""
        return None if self.result_type is None else self.result_type.fingerprint

    def data_of(self, data: dict[str, Any]) -> Any:
        """What its handler gets as `item.data`. ValueMismatch if the data does not fit the type."""
        return data if self.item_type is None else self.item_type.value(data, "data")

    def value_of(self, text: str | None) -> Any:
        """The value of a stored result; None for that of a skipped stage. ValueMismatch if it does not fit the type."""
        if text is None:
            return None
        form = codec.decode(text)
        return form if self.result_type is None else self.result_type.value(form, "result")

    def stands(self, version: str) -> bool:
        """Whether a result of this version is still valid."""
        return version == self.version or version in self.compatible_from


def _check_versions(stage: StageSpec, where: str) -> None:
    version = stage.version
    if not isinstance(version, str) or not version:
        raise DefinitionError(f'{where}: version {version!r} is not a text; write version="2"')
    if codec.plain_text(version, 200) != version:
        raise DefinitionError(f"{where}: version {version[:50]!r}: 200 characters at most, none that cannot be stored")
    if not all(isinstance(version, str) and version for version in stage.compatible_from):
        raise DefinitionError(f"{where}: compatible_from {stage.compatible_from!r}: versions are texts")


def _check_attempts(stage: StageSpec, where: str) -> None:
    """How often an attempt is made, how long it may take, and how many items it gets."""
    if _whole(stage.max_attempts) < 1:
        raise DefinitionError(f"{where}: max_attempts {stage.max_attempts!r} is not a whole number of 1 or more")
    if stage.batch is not None and _whole(stage.batch) < 1:
        raise DefinitionError(f"{where}: batch {stage.batch!r} is not a whole number of 1 or more")
    if stage.timeout_seconds is not None and stage.timeout_seconds <= 0:
        raise DefinitionError(f"{where}: timeout must be longer than zero")
    if stage.isolate not in (None, "process"):
        raise DefinitionError(f'{where}: isolate={stage.isolate!r} is unknown; the only way is isolate="process"')


def _check_order(stage: StageSpec, where: str) -> None:
    """The stages it comes after, its reruns, and its former name."""
    if len(set(stage.after)) != len(stage.after):
        raise DefinitionError(f"{where}: after={list(stage.after)} names a stage twice")
    if stage.after_children is not None and not stage.after:
        raise DefinitionError(
            f"{where}: after_children={stage.after_children!r} needs after=: name the stages that submit the children"
        )
    reruns = stage.max_reruns_per_hour
    if _whole(reruns) < 1:
        raise DefinitionError(f"{where}: max_reruns_per_hour {reruns!r} is not a whole number of 1 or more")
    if stage.after and reruns != MAX_RERUNS_PER_HOUR:
        raise DefinitionError(f"{where}: max_reruns_per_hour is for first stages: that is where reruns begin")
    if stage.renamed_from is not None:
        check_name(stage.renamed_from, f"{where}: renamed_from")
        if stage.renamed_from == stage.name:
            raise DefinitionError(f"{where}: renamed_from={stage.renamed_from!r} is its own name")


def _check_costs(stage: StageSpec, where: str) -> None:
    """The resources it uses, and what it is expected to cost."""
    for resource in stage.resources:
        check_name(resource, f"{where}: resource")
    if len(set(stage.resources)) != len(stage.resources):
        raise DefinitionError(f"{where}: resource={list(stage.resources)} names one twice")
    estimate = stage.estimate
    if estimate is not None and not callable(estimate):
        if isinstance(estimate, bool) or not isinstance(estimate, int) or estimate < 0:
            raise DefinitionError(f"{where}: estimate {estimate!r} is neither an amount nor a function of the item")
    for unit, function in stage.units.items():
        if not callable(function):
            raise DefinitionError(f"{where}: units: {unit!r} needs a function of the item, not {function!r}")
    if (stage.units or estimate is not None) and not stage.resources:
        raise DefinitionError(f"{where}: an estimate, or units, need a resource that they count against")


class Batch(Generic[R]):
    """For type checkers: the results of a stage are the elements of what its function returns."""


class Stage(Generic[P, R, V]):
    """A function that was made a stage. It is called as before, and can be given where a stage is expected: `after=extract`."""

    def __init__(self, function: Callable[P, R], spec: StageSpec) -> None:
        update_wrapper(self, function)
        self.spec = spec

    @property
    def name(self) -> str:
        return self.spec.name

    def value_of(self, text: str | None) -> Any:
        """The value of a result of this stage, as it is stored: an instance of its type, if it has one."""
        return self.spec.value_of(text)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.spec.handler(*args, **kwargs)  # type: ignore[no-any-return]

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        """Like a function, it becomes a method in a class."""
        return self if owner is None else MethodType(self, owner)

    def __getattr__(self, name: str) -> Any:
        """Other attributes of the function. `inspect` needs its code to recognise an async one."""
        if name == "__wrapped__":  # an empty copy has none
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __reduce__(self) -> str:
        """Pickled by name, as functions are."""
        return str(self.__qualname__)

    def __repr__(self) -> str:
        return f"<stage {self.name!r}: {self.__wrapped__!r}>"


def stage_name(stage: object, where: str) -> str:
    """The name of a stage that a handler gives: a text, or the stage itself."""
    if isinstance(stage, Stage):
        return stage.name
    if not isinstance(stage, str):
        raise UsageError(f"{where}: {stage!r} is not a stage: give its name, or the function that was decorated")
    return stage


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """Named stages in an order that respects `after`."""

    name: str
    stages: tuple[StageSpec, ...]
    #: The file that defines it, if known.
    origin: str = field(default="", compare=False)
    #: What the data of its items is checked against when they are added.
    data_type: ValueType | None = field(default=None, compare=False)

    @classmethod
    def build(cls, name: str, stages: Iterable[StageSpec], origin: str = "", data: Any = None) -> PipelineSpec:
        """Check names and order; refuse two stages of one name, an unknown name, a cycle. `data` is the type of its items'
        data."""
        check_name(name, "pipeline")
        given: dict[str, StageSpec] = {}
        for stage in stages:
            if stage.name in given:
                raise DefinitionError(f"pipeline {name!r} has two stages named {stage.name!r}: rename one of them")
            given[stage.name] = stage
        if not given:
            raise DefinitionError(f"pipeline {name!r} has no stages: decorate a function with @{name}.stage()")
        for stage in given.values():
            for before in stage.after:
                if before not in given:
                    raise DefinitionError(
                        f"pipeline {name!r}: stage {stage.name!r} comes after {before!r}, which does not exist; "
                        f"{there_are(before, sorted(given))}"
                    )
        _check_former_names(name, given)
        return cls(name, _in_order(name, given), origin, data_type(data, f"pipeline {name!r}: data"))

    def stage(self, name: str) -> StageSpec:
        found = self.find(name)
        if found is None:
            raise DefinitionError(f"pipeline {self.name!r} has no stage {name!r}")
        return found

    def find(self, name: str) -> StageSpec | None:
        for stage in self.stages:
            if stage.name == name:
                return stage
        return None

    @property
    def type(self) -> str | None:
        """The fingerprint of the type of its items' data; None if it has none."""
        return None if self.data_type is None else self.data_type.fingerprint


def _check_former_names(pipeline: str, given: Mapping[str, StageSpec]) -> None:
    """Refuse a former name that another stage has now, or that two stages claim."""
    taken: dict[str, str] = {}
    for stage in given.values():
        former = stage.renamed_from
        if former is None:
            continue
        if former in given:
            raise DefinitionError(
                f"pipeline {pipeline!r}: stage {stage.name!r} is renamed_from={former!r}, which is still a stage of it; a new "
                "stage has no renamed_from="
            )
        if former in taken:
            both = f"{taken[former]!r} and {stage.name!r}"
            raise DefinitionError(f"pipeline {pipeline!r}: the stages {both} are both renamed_from={former!r}")
        taken[former] = stage.name


def named_resources(pipelines: Iterable[PipelineSpec]) -> set[str]:
    """The resources that the stages of these pipelines use."""
    return {name for pipeline in pipelines for stage in pipeline.stages for name in stage.resources}


def check_resources(pipelines: Iterable[PipelineSpec], defined: Collection[str]) -> None:
    """Refuse a stage that uses an undefined resource: nothing would limit a misspelt one."""
    for pipeline in pipelines:
        for stage in pipeline.stages:
            for name in stage.resources:
                if name not in defined:
                    # Names with @ are the limits of a pipeline or a stage.
                    near = did_you_mean(name, sorted(one for one in defined if not one.startswith("@")))
                    raise DefinitionError(
                        f"pipeline {pipeline.name!r}, stage {stage.name!r}: resource {name!r} is not defined, "
                        f"{near}{'' if near.endswith('?') else '.'} "
                        f"To define it: Pipeline({pipeline.name!r}, resources={{{name!r}: {{…}}}}), with its limits, or none"
                    )


def check_name(name: object, what: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DefinitionError(
            f"{what} name {name!r}: start with a letter, go on with letters, digits, '_', '-' or '.', 100 at most"
        )


def _in_order(pipeline: str, given: dict[str, StageSpec]) -> tuple[StageSpec, ...]:
    ordered: dict[str, StageSpec] = {}
    left = dict(given)
    while left:
        ready = [stage for stage in left.values() if all(before in ordered for before in stage.after)]
        if not ready:
            raise DefinitionError(f"pipeline {pipeline!r}: the stages {_cycle(left)} wait for each other in a cycle")
        for stage in ready:
            ordered[stage.name] = left.pop(stage.name)
    return tuple(ordered.values())


def _cycle(left: dict[str, StageSpec]) -> str:
    path = [next(iter(left))]
    while True:
        before = next(name for name in left[path[-1]].after if name in left)
        if before in path:
            return " → ".join(reversed([*path[path.index(before) :], before]))
        path.append(before)


def _whole(number: object) -> int:
    return number if isinstance(number, int) and not isinstance(number, bool) else 0


def _check_signature(handler: Handler, where: str) -> None:
    if not callable(handler):
        raise DefinitionError(f"{where}: the handler {handler!r} is not a function")
    name = getattr(handler, "__qualname__", repr(handler))
    functions = (handler, getattr(handler, "__call__", None))  # noqa: B004 - an object may be called too
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in functions):
        raise DefinitionError(f"{where}: {name} yields; a handler returns its result")
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError:
        raise DefinitionError(
            f"{where}: {name}{inspect.signature(handler)} cannot be called as {name}(item, ctx); a handler takes these two"
        ) from None
    except ValueError:
        return  # a builtin without a signature
