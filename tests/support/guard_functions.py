"""Guards that a test tells what to say: `says["quiet"] = True`, a text, an exception to raise, or an event to wait for."""

from __future__ import annotations

import threading
from typing import Any

says: dict[str, Any] = {}


def quiet() -> Any:
    return _answer("quiet")


def other() -> Any:
    return _answer("other")


def _answer(name: str) -> Any:
    answer = says[name]
    if isinstance(answer, BaseException):
        raise answer
    if isinstance(answer, threading.Event):
        answer.wait(30)
        return True
    return answer
