"""Errors of user code, made storable without secrets; and the cause that similar failures have in common."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path
from typing import NamedTuple

from holdfast.model import codec
from holdfast.model.redact import redact

ERROR_LENGTH = 2_000
TRACEBACK_LENGTH = 16_000
#: How much of a message is compared.
MESSAGE_LENGTH = 200

_KIND = re.compile(r"([A-Za-z_][\w.]*)(?:: |$)")
_FRAME = re.compile(r'^[ |+-]*File "([^"\n]+)", line \d+, in ([^\n]+)$', re.MULTILINE)
#: What differs each time: identifiers, numbers, and quoted texts that are paths or long.
_CHANGING = re.compile(
    r"""(?P<quoted>'[^'\n]*[/\\][^'\n]*'|"[^"\n]*[/\\][^"\n]*"|'[^'\n]{40,}'|"[^"\n]{40,}")
    |(?P<id>\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b|\b0x[0-9a-fA-F]+\b|\b(?=\w*\d)[0-9a-fA-F]{8,}\b)
    |(?P<number>[-+]?\d+(?:[.,:]\d+)*)""",
    re.VERBOSE,
)
_STAND_INS = {"quoted": "'…'", "id": "<id>", "number": "<n>"}
#: Shorter keys are replaced only where they are quoted: they may be ordinary words.
_SHORT_KEY = 3
#: What to do about errors of our own, by the name of their class.
HINTS = {
    "BadRequest": "correct the request: its parameters, or the name of the model",
    "ContentFiltered": "change the input or the prompt: the provider's filter refuses it",
    "InDoubt": "the call may have been charged: holdfast resolve settles it",
    "InputTooLong": "split the input, or use a model with a longer context window",
    "NotSent": "nothing was sent and nothing paid: check the address, the network and the proxy",
    "ProcessDied": 'an item may have used up the memory: isolate="process" keeps its neighbours safe',
    "RejectedTooOften": "look at the rejected answers (holdfast show), and change the prompt or the validation",
    "StageTimeout": "give the stage a longer timeout=, or its client a shorter one",
}
#: Code that is not the user's: this package, and installed ones.
_OTHERS = tuple({f"{Path(__file__).parents[1]}/", *(f"{path}/" for path in sysconfig.get_paths().values())})


class Cause(NamedTuple):
    """What similar failures have in common: the class of the error, where in the user's code it was raised, and its message
    without the parts that differ each time."""

    kind: str
    place: str
    message: str

    @property
    def group(self) -> str:
        return codec.digest_of("\n".join(self).encode())[:10]


def cause_of(error: str | None, trace: str | None, key: str) -> Cause:
    """The cause of a failure, from what was recorded of it."""
    said = (error or "").partition("\n")[0]
    named = _KIND.match(said)
    frames = [(file, function) for file, function in _FRAME.findall(trace or "") if _is_users(file)]
    place = f"{Path(frames[-1][0]).name}: {frames[-1][1]}" if frames else ""
    message = said[named.end() :] if named else said
    return Cause(
        named[1] if named else "", place, _without_what_changes(message[: 5 * MESSAGE_LENGTH], key)[:MESSAGE_LENGTH]
    )


def _is_users(file: str) -> bool:
    return not (file.startswith(_OTHERS) or file.startswith("<frozen") or "/site-packages/" in file)


def _without_what_changes(message: str, key: str) -> str:
    if key:
        word = re.escape(key)
        quoted = rf"(?<=['\"]){word}(?=['\"])"
        message = re.sub(quoted if len(key) < _SHORT_KEY else rf"{quoted}|(?<!\w){word}(?!\w)", "<key>", message)
    return _CHANGING.sub(lambda found: _STAND_INS[found.lastgroup or ""], message)


def storable(text: str, limit: int = ERROR_LENGTH) -> str:
    """Text of user code that a database can hold. Secrets are masked before it is cut: half of one is still a secret."""
    return codec.plain_text(redact(text, limit), limit)


def describe(error: BaseException) -> tuple[str, str]:
    """An error as one storable text, and its traceback as another; never raises, whatever the error does."""
    try:
        said = str(error)
    except BaseException as worse:
        said = f"(its text is not available: {type(worse).__name__})"
    text = storable(f"{type(error).__name__}: {said}" if said else type(error).__name__)
    try:
        # Only the nearest frames: a runaway recursion has thousands.
        lines = traceback.TracebackException.from_exception(
            error, limit=-30, max_group_width=5, max_group_depth=3
        ).format()
        trace = storable("".join(lines), TRACEBACK_LENGTH)
    except BaseException as worse:
        trace = f"{text}\n(its traceback is not available: {type(worse).__name__})"
    return text, trace
