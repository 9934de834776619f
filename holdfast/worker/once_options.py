"""The terms of a sub-step: what to call, what it costs, what to do in doubt, and which answers are valid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from holdfast.engine.resource_feedback import AskedPause
from holdfast.errors import Permanent, UsageError
from holdfast.model import codec
from holdfast.model.did_you_mean import there_are
from holdfast.model.functions import is_async
from holdfast.model.money import Amount, micros
from holdfast.model.paid_call import NO_FACTS, CallFacts
from holdfast.providers.model_request import ModelRequest

Price = Amount | Callable[[Any], Amount]
OnDoubt = Literal["retry", "hold"] | Callable[..., Any]
StatedFacts = Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]

MAX_NAME = 200
#: How many answers of one call may be rejected before its item fails.
REJECTIONS = 3


class OnceOptions(TypedDict, total=False):
    """What may be said about a sub-step."""

    cost: Price | None
    estimate: Amount | None
    on_doubt: OnDoubt
    resource: str | None
    validate: Callable[[Any], Any] | None
    facts: StatedFacts | None
    rejections: int


@dataclass(slots=True, frozen=True)
class Terms:
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    cost: Price | None = None
    estimate: Amount | None = None
    on_doubt: OnDoubt = "retry"
    resource: str | None = None
    validate: Callable[[Any], Any] | None = None
    facts: StatedFacts | None = None
    rejections: int = REJECTIONS
    #: Applied to an answer, new or recorded, before the handler gets it.
    parse: Callable[[Any], Any] | None = None
    #: What is asked of a model, for spans; and what the headers of the answer ask for, once.
    request: ModelRequest | None = None
    heard: Callable[[], AskedPause | None] | None = None

    @classmethod
    def of(
        cls, name: str, function: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any], **more: Any
    ) -> Terms:
        """The terms as a handler writes them. Texts may be of a subclass of str, such as parsers return; databases reject
        these."""
        known = list(OnceOptions.__annotations__)
        if strange := [option for option in options if option not in known]:
            raise UsageError(f"once({name!r}): there is no option {strange[0]!r}; {there_are(strange[0], known)}")
        given = {**options, "resource": plain_name(options.get("resource"))}
        return cls(plain_name(name), function, args, **given, **more)

    def check(self, where: str, *, may_wait: bool) -> None:
        """Refuse invalid terms. Only an async handler (`may_wait`) can await async functions."""
        check_memo_name(self.name, where)
        if not callable(self.function):
            raise UsageError(f"{where}: {self.function!r} is not a function")
        if self.on_doubt not in ("retry", "hold") and not callable(self.on_doubt):
            raise UsageError(f'{where}: on_doubt={self.on_doubt!r}: it is "retry", "hold" or a function')
        if self.cost is not None and not callable(self.cost):
            micros(self.cost, what=f"{where}: cost")
        functions = {"cost": self.cost, "validate": self.validate, "facts": self.facts, "parse": self.parse}
        for what, function in functions.items():
            if callable(function) and is_async(function):
                raise UsageError(f"{where}: {what}: {name_of(function)} is async; give a plain function")
        if self.validate is not None and not callable(self.validate):
            raise UsageError(f"{where}: validate={self.validate!r} is not a function")
        if isinstance(self.rejections, bool) or not isinstance(self.rejections, int) or self.rejections < 1:
            raise UsageError(f"{where}: rejections={self.rejections!r} is not a whole number of 1 or more")
        if not callable(self.facts):
            CallFacts.read(self.facts, where=where)
        if self.estimate is not None:
            micros(self.estimate, what=f"{where}: estimate")
        check_resource(self.resource, where)
        for function in (self.function, self.on_doubt):
            if not may_wait and callable(function) and is_async(function):
                raise UsageError(f"{where}: {name_of(function)} is async: call it from an async handler")

    @property
    def is_paid(self) -> bool:
        return self.cost is not None or self.estimate is not None

    @property
    def expected(self) -> int | None:
        amount = self.estimate if self.estimate is not None else self.cost
        return None if amount is None or callable(amount) else micros(amount)

    def facts_before(self, where: str) -> CallFacts:
        """The facts that are known before the call is made."""
        return NO_FACTS if callable(self.facts) else CallFacts.read(self.facts, where=where)

    def cost_of(self, value: Any, where: str) -> tuple[int | None, Permanent | None]:
        """What the call cost, and an error if that cannot be determined."""
        if not callable(self.cost):
            return (None if self.cost is None else micros(self.cost)), None
        try:
            return micros(self.cost(value), what=f"{where}: cost"), None
        except Exception as error:
            return self.expected, Permanent(
                f"{where}: the result is recorded, but its cost cannot be told: {type(error).__name__}: {error}"
            )

    def facts_of(self, value: Any, where: str) -> tuple[CallFacts, Permanent | None]:
        try:
            return CallFacts.read(self.facts(value) if callable(self.facts) else self.facts, where=where), None
        except Exception as error:
            return NO_FACTS, Permanent(
                f"{where}: the result is recorded, but not its facts: {type(error).__name__}: {error}"
            )


def plain_name(name: Any) -> Any:
    """Turn an instance of a subclass of str into a plain str."""
    return str.__str__(name) if isinstance(name, str) else name


def check_memo_name(name: object, where: str) -> None:
    if isinstance(name, str) and 0 < len(name) <= MAX_NAME and codec.plain_text(name, MAX_NAME) == name:
        return
    raise UsageError(f"{where}: a name is a text of 1 to {MAX_NAME} characters")


def check_resource(resource: object, where: str) -> None:
    if resource is not None:
        if not isinstance(resource, str) or not resource or codec.plain_text(resource, MAX_NAME) != resource:
            raise UsageError(f"{where}: resource {resource!r} is not a name")


def name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", repr(function)))
