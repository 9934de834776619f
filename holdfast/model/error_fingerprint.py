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
#: Stands for everything that differs each time. One mark for all of it: a key may be a number, and a number may be a key.
_MARK = "<…>"


def _runs_of(*parts: str) -> re.Pattern[str]:
    """Finds what differs each time, and several of it that are joined as one: `7:12` looks like one number if the key is 7."""
    one = f"(?:{'|'.join((_MARK, *parts))})"
    return re.compile(rf"{one}(?:[-.,:/+_]{one})*")


#: Identifiers and numbers, and keys that are marked. A minus after a word is a hyphen, in `page-7` as in `page-b1`.
_CHANGING = _runs_of(
    r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b",
    r"\b0x[0-9a-fA-F]+\b",
    r"\b(?=\w*\d)[0-9a-fA-F]{8,}\b",
    r"(?:(?<!\w)[-+])?\d+",
)
#: Quoted texts that change, are paths, or are long.
_QUOTED = re.compile(
    rf"""'{_MARK}'|"{_MARK}"|"""
    r"""'[^'/\\\n]*[/\\][^'\n]*'|"[^"/\\\n]*[/\\][^"\n]*"|'[^'\n]{40,}'|"[^"\n]{40,}\""""
)
#: A letter by itself may be a word or a key, and nothing tells which.
_LETTERS = _runs_of(r"(?<![\w'\"])[^\W\d_](?![\w'\"])")
#: What to do about errors of our own, by the name of their class.
HINTS = {
    "AnswerNotKept": "let the function return a plain value, or a reference of ctx.keep: what was bought is in holdfast show",
    "BadRequest": "correct the request: its parameters, or the name of the model",
    "ContentFiltered": "change the input or the prompt: the provider's filter refuses it",
    "CredentialRefused": "check the key: holdfast limits shows which resource it is for",
    "InDoubt": "the call may have been charged: holdfast resolve settles it",
    "InputTooLong": "split the input, or use a model with a longer context window",
    "NotSent": "nothing was sent and nothing paid: check the address, the network and the proxy",
    "OutOfCredit": "pay the provider, then holdfast resume: no attempt is spent while the resource is paused",
    "Overloaded": "if others pass, the provider fails at this input: try another one, or another model",
    "ProcessDied": 'an item may have used up the memory: isolate="process" keeps its neighbours safe',
    "RateLimited": "give the resource a rate= or concurrency= that the provider allows",
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
        """One for all keys: a letter that stands by itself counts as one, which may be the word "a"."""
        message = _LETTERS.sub(_MARK, self.message)
        return codec.digest_of("\n".join((self.kind, self.place, message)).encode())[:10]


def cause_of(error: str | None, trace: str | None, key: str) -> Cause:
    """The cause of a failure, from what was recorded of it."""
    text = (error or "")[:ERROR_LENGTH]
    named = _KIND.match(text.partition("\n")[0])
    frames = [(file, function) for file, function in _FRAME.findall(trace or "") if _is_users(file)]
    place = f"{Path(frames[-1][0]).name}: {frames[-1][1]}" if frames else ""
    message = _without_what_changes(text[named.end() :] if named else text, key)
    return Cause(named[1] if named else "", place, message[:MESSAGE_LENGTH])


def _is_users(file: str) -> bool:
    return not (file.startswith(_OTHERS) or file.startswith("<frozen") or "/site-packages/" in file)


def _without_what_changes(message: str, key: str) -> str:
    """The first line of a message, with a mark for what changes."""
    if key and not key.isdecimal():
        message = _with_key_marked(message, key)
    message = _CHANGING.sub(_MARK, message).partition("\n")[0]
    return _QUOTED.sub(f"'{_MARK}'", message)


def _with_key_marked(message: str, key: str) -> str:
    """The key is marked wherever it is quoted or a word. If it is an ordinary word, that one is marked, too: a cause has a
    group more for each such word in its message, and not for each key.

    Without a pattern: compiling one for each key would take longer than all the rest.
    """
    # A key of signs alone stands between words that have nothing to do with it.
    is_word = any(map(str.isalnum, key))
    parts: list[str] = []
    done, at = 0, message.find(key)
    while at >= 0:
        end = at + len(key)
        before, after = message[at - 1 : at], message[end : end + 1]
        is_quoted = before in ("'", '"') and after in ("'", '"')
        if is_quoted or (is_word and not before.isalnum() and not after.isalnum()):
            parts += message[done:at], _MARK
            done = end
        at = message.find(key, max(done, at + 1))
    return "".join(parts) + message[done:]


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
