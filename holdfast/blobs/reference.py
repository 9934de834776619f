"""The reference to a blob: a small value that is stored as JSON in place of the content, and opens as a file."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from holdfast.errors import BlobMissing, UsageError

#: How a reference is written in JSON.
KEY = "$blob"
_ID = re.compile(r"sha256:([0-9a-f]{64})")
_REFERENCE = re.compile(r'"\$blob"\s*:\s*"sha256:([0-9a-f]{64})"')
_LONGEST_NAME = 255
CHUNK = 1 << 20


class BlobReader(Protocol):
    """Where the content is."""

    def open(self, sha256: str, size: int) -> BinaryIO: ...

    def path(self, sha256: str) -> Path: ...


#: Where references that are read now have their content.
_PLACE: ContextVar[BlobReader | None] = ContextVar("holdfast_blobs", default=None)


@contextmanager
def found_at(reader: BlobReader) -> Iterator[None]:
    """References that are made of stored values meanwhile, however deep in an instance, know where their content is."""
    before = _PLACE.set(reader)
    try:
        yield
    finally:
        _PLACE.reset(before)


class Blob(msgspec.Struct, frozen=True, omit_defaults=True, dict=True, rename={"id": KEY}):
    """A reference to kept content. `ctx.keep` returns it, and `ctx.blob` makes one from its JSON form."""

    #: `sha256:` and the hash of the content.
    id: str
    #: In bytes.
    size: int
    #: A file name, without a folder.
    name: str | None = None
    #: A media type, as in image/png.
    type: str | None = None

    def __post_init__(self) -> None:
        if (reader := _PLACE.get()) is not None:
            self.__dict__["_reader_"] = reader

    def open(self) -> BinaryIO:
        """The content as a binary file, to be closed by the caller."""
        return self._reader.open(self.sha256, self.size)

    def read(self) -> bytes:
        """The whole content."""
        with self.open() as file:
            return file.read()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Copy the content to a file, which appears there complete, and replaces another."""
        target = Path(path)
        part = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.part")
        try:
            with part.open("xb") as copy:
                for chunk in self._checked():
                    copy.write(chunk)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)

    def verify(self) -> None:
        """Read the whole content, and raise BlobMissing if it is not what was kept."""
        for _ in self._checked():
            pass

    @property
    def path(self) -> Path:
        """The file with the content, where it is in a local folder. Read it; never write to it."""
        return self._reader.path(self.sha256)

    @property
    def sha256(self) -> str:
        """The hash of the content, as 64 hexadecimal digits."""
        if (found := _ID.fullmatch(self.id)) is None:
            raise UsageError(f"{self.id[:100]!r} does not name a blob: it is sha256: and 64 hexadecimal digits")
        return found[1]

    def bound(self, reader: BlobReader) -> Blob:
        """The same reference, which knows where the content is."""
        made = Blob(self.id, self.size, self.name, self.type)
        made.__dict__["_reader_"] = reader
        return made

    @property
    def _reader(self) -> BlobReader:
        try:
            reader: BlobReader = self.__dict__["_reader_"]
        except KeyError:
            raise UsageError(
                "this reference does not know where its content is: open it with ctx.blob(…) or app.blob(…)"
            ) from None
        return reader

    def _checked(self) -> Iterator[bytes]:
        made = hashlib.sha256()
        with self.open() as file:
            while chunk := file.read(CHUNK):
                made.update(chunk)
                yield chunk
        if made.hexdigest() != self.sha256:
            raise BlobMissing(f"the content of {self.id} is damaged: restore it from a backup, or run its stage again")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Lets a pydantic model have a field of this type."""
        from pydantic_core import core_schema

        form = core_schema.plain_serializer_function_ser_schema(msgspec.to_builtins)
        return core_schema.no_info_plain_validator_function(_validated, serialization=form)


def read_reference(value: Any) -> Blob:
    """The reference that a stored value is; UsageError if it is none."""
    if isinstance(value, Blob):
        found = value
    elif isinstance(value, Mapping) and KEY in value:
        try:
            found = msgspec.convert(dict(value), Blob)
        except msgspec.ValidationError as error:
            raise UsageError(f"a reference to a blob that cannot be used: {error}") from None
    else:
        raise UsageError(f"a value of type {type(value).__name__} is no reference to a blob, as ctx.keep returns it")
    if found.size < 0 or _ID.fullmatch(found.id) is None:
        raise UsageError(f"{found.id[:100]!r} does not name a blob: it is sha256: and 64 hexadecimal digits")
    if found.name is not None:
        check_name(found.name)
    return found


def _validated(value: Any) -> Blob:
    """The same, with the error that a validator of pydantic raises."""
    try:
        return read_reference(value)
    except UsageError as error:
        raise ValueError(str(error)) from None


def references_in(text: str) -> list[str]:
    """The hashes of the blobs that a JSON text refers to."""
    return _REFERENCE.findall(text) if KEY in text else []


def mentioned_in(text: str) -> list[str]:
    """Every hash that a text mentions, in a reference or not."""
    return _ID.findall(text)


def check_name(name: str) -> None:
    """Refuse a name that is more than the name of a file: somebody will save the content under it."""
    if not is_name(name):
        raise UsageError(f"name {name[:100]!r}: give the name of a file, without a folder, of up to 255 bytes")


def is_name(name: str) -> bool:
    if name in ("", ".", "..") or not name.isprintable() or "/" in name or "\\" in name:
        return False
    return len(name.encode("utf-8", "replace")) <= _LONGEST_NAME
