"""What every kind of source promises, as tests for any kind, ours and those of other packages."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.model import codec
from holdfast.model.found_items import check
from holdfast.sources.contract import Found, Kept, LookEnded, Source, SourceFailed, ending
from holdfast.sources.registry import SourceSpec, read_source


class SourceContract:
    """Tests of a kind of source, run by pytest in a class that says how such a source is written:

    class TestShelf(SourceContract):
        def given(self, folder):
            (folder / "shelf").write_text("emma\\nwalden\\n")
            return {"shelf": "shelf"}
    """

    def given(self, folder: Path) -> dict[str, Any]:
        """A source as in a job file, with at least two items, the same on each look. Its files go into the folder."""
        raise NotImplementedError

    def broken(self, folder: Path) -> dict[str, Any] | None:
        """A valid source that cannot be read, if there is such a thing."""
        return None

    def test_what_is_written_equally_is_equal_and_says_nothing_of_its_settings(self, tmp_path: Path) -> None:
        given = self.given(tmp_path)
        spec = _read(given, tmp_path)
        assert spec == _read(dict(reversed(given.items())), tmp_path)
        assert spec.definition == _read(given, tmp_path).definition
        assert spec.open().kind == spec.kind
        assert next(iter(spec.open().options)) == spec.kind, "the first option is the one that names the kind"
        assert "settings" not in repr(spec)

    def test_an_unknown_option_is_refused_by_its_name(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="source 's': 'no_such_option' is unknown to"):
            _read({**self.given(tmp_path), "no_such_option": 1}, tmp_path)

    def test_items_have_keys_and_data_that_can_be_stored(self, tmp_path: Path) -> None:
        source = _read(self.given(tmp_path), tmp_path).open()
        stream = list(source.look({}))
        assert all(isinstance(one, (Found, Kept)) for one in stream), "a look yields Found and Kept, and nothing else"
        found = [check(one) for one in stream if isinstance(one, Found)]
        assert len({one.key for one in found}) >= 2, "given() is to have at least two items"

    def test_two_looks_find_the_same(self, tmp_path: Path) -> None:
        spec = _read(self.given(tmp_path), tmp_path)
        assert _marks(spec.open(), {}) == _marks(spec.open(), {}), "an item that has not changed has the mark it had"

    def test_what_it_remembers_is_json_and_lets_nothing_come_that_was_not_there(self, tmp_path: Path) -> None:
        spec = _read(self.given(tmp_path), tmp_path)
        memory: dict[str, Any] = {}
        first = _marks(spec.open(), memory)
        source = spec.open()
        stream = list(source.look(_stored(memory)))
        found = {one.key for one in stream if isinstance(one, Found)}
        assert found <= set(first)
        is_all = source.whole and not source.missed and not any(isinstance(one, Kept) for one in stream)
        assert found == set(first) or not is_all, "what a look leaves out has vanished, unless it says Kept, or missed"

    def test_a_look_that_breaks_off_loses_nothing(self, tmp_path: Path) -> None:
        spec = _read(self.given(tmp_path), tmp_path)
        everything = set(_marks(spec.open(), {}))
        memory: dict[str, Any] = {}
        begun: set[str] = set()
        with ending(spec.open().look(memory)) as stream:
            for one in stream:
                if isinstance(one, Found):
                    begun.add(one.key)
                    break
        rest = set(_marks(spec.open(), _stored(memory)))
        assert begun | rest == everything, "it notes how far it has come only once all up to there was yielded"

    def test_a_look_that_has_to_end_ends(self, tmp_path: Path) -> None:
        source = _read(self.given(tmp_path), tmp_path).open()

        def end() -> None:
            raise LookEnded("it has to end")

        source.check = end
        # A source that is always quick need not call `check`; one that does lets its error pass.
        with suppress(LookEnded):
            list(source.look({}))

    def test_what_cannot_be_read_is_one_line(self, tmp_path: Path) -> None:
        given = self.broken(tmp_path)
        if given is not None:
            with pytest.raises(SourceFailed, match=r"^[^\n]+$"):
                list(_read(given, tmp_path).open().look({}))


def _read(given: dict[str, Any], folder: Path) -> SourceSpec:
    return read_source("s", given, where="test", folder=folder)


def _marks(source: Source, memory: dict[str, Any]) -> dict[str, str]:
    found = [check(one) for one in source.look(memory) if isinstance(one, Found)]
    return {one.key: one.mark for one in reversed(found)}


def _stored(memory: dict[str, Any]) -> dict[str, Any]:
    """As the database gives it back."""
    kept: dict[str, Any] = codec.decode(codec.encode(memory))
    return kept
