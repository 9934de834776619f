"""A reference is plain JSON, is recognised when it is read back, and fits into typed values."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pydantic
import pytest

import holdfast
from holdfast.blobs.reference import Blob, mentioned_in, read_reference, references_in
from holdfast.errors import UsageError
from holdfast.model import codec

pytestmark = pytest.mark.req("P13")

HASH = "ab" * 32
REFERENCE = {"$blob": f"sha256:{HASH}", "size": 3, "name": "a.png", "type": "image/png"}
BLOB = Blob(f"sha256:{HASH}", 3, "a.png", "image/png")


@dataclasses.dataclass
class Page:
    image: Blob


class Model(pydantic.BaseModel):
    image: Blob
    others: list[Blob] = []


class Struct(msgspec.Struct):
    image: Blob


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (BLOB, REFERENCE),
        ({"image": BLOB}, {"image": REFERENCE}),
        ([BLOB, 1], [REFERENCE, 1]),
        (Page(BLOB), {"image": REFERENCE}),
        (Struct(BLOB), {"image": REFERENCE}),
        (Model(image=BLOB, others=[BLOB]), {"image": REFERENCE, "others": [REFERENCE]}),
        (Blob(f"sha256:{HASH}", 3), {"$blob": f"sha256:{HASH}", "size": 3}),
    ],
)
def test_it_is_plain_json_wherever_it_stands(value: Any, form: Any) -> None:
    assert codec.decode(codec.encode(value)) == form


def test_it_is_recognised_when_it_is_read_back() -> None:
    assert (
        read_reference(REFERENCE)
        == read_reference(BLOB)
        == BLOB
        == holdfast.Blob(id=BLOB.id, size=3, name="a.png", type="image/png")
    )
    assert msgspec.convert({"image": REFERENCE}, Struct).image == BLOB
    assert Model.model_validate({"image": REFERENCE, "others": [REFERENCE]}).others == [BLOB]
    with pytest.raises(pydantic.ValidationError, match="does not name a blob"):
        Model.model_validate({"image": {"$blob": "x", "size": 1}})


def test_one_that_does_not_know_its_place_says_how_to_open_it() -> None:
    with pytest.raises(UsageError, match=r"ctx\.blob"):
        BLOB.read()


def test_references_and_mentions_are_found_in_text() -> None:
    text = codec.encode({"a": BLOB, "b": ["sha256:" + "cd" * 32, "sha256:short"]})
    assert references_in(text) == [HASH]
    assert mentioned_in(text) == [HASH, "cd" * 32]
    assert references_in('{"$blob" : "sha256:%s"}' % HASH) == [HASH]  # noqa: UP031
    # As text inside of text it is no reference, but keeps the content all the same.
    quoted = codec.encode({"text": text})
    assert (references_in(quoted), mentioned_in(quoted)) == ([], [HASH, "cd" * 32])
