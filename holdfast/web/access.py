"""Who looks, and what they may do: the answer of an `access` function."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from starlette.requests import Request


@dataclass(frozen=True, slots=True)
class Access:
    """A person who may read every page. `name` stands in the audit of what they do; `verbs` are those commands of the command
    line that they may give (`retry`, `cancel`, …): None for all of them, `()` for reading only. With `redirect`, the request is
    sent there instead, to a login page say."""

    name: str = ""
    verbs: Collection[str] | None = None
    redirect: str | None = None

    def may(self, verb: str) -> bool:
        return self.verbs is None or verb in self.verbs


#: Gets the request; None refuses it.
Judge = Callable[[Request], Access | Awaitable[Access | None] | None]

READ_ONLY = ()


async def judged(judge: Judge, request: Request) -> Access | None:
    """What the function says, sync or async."""
    found = judge(request)
    if inspect.isawaitable(found):
        found = await found
    if found is not None and not isinstance(found, Access):
        raise TypeError(f"the access function returned {type(found).__name__}, not an Access or None")
    return found


def reading_only(access: Access) -> Access:
    return Access(access.name, READ_ONLY, access.redirect)
