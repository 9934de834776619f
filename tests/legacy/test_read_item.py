"""A row of an old table is read as well as it can be: every entry that makes sense counts, and every other is told."""

from __future__ import annotations

import gc
import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.legacy.mapping import Cells, Mapped
from holdfast.legacy.read_values import OldData, read_data, read_key, with_key
from holdfast.legacy.stages_of_old_item import KINDS, Entry, Stages, StagesReader
from holdfast.model import codec
from holdfast.model.item import MAX_KEY_BYTES, check_key
from holdfast.model.states import OPEN, PASSED, State
from tests.support.old_database import AFTER, CASES, raw, results, timed

pytestmark = pytest.mark.req("J8")

DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


def bytes_of(value: Any) -> bytes | None:
    text = raw(value)
    return text.encode() if isinstance(text, str) else text


JSON = Mapped.read({"shape": "stages-json"})


def read_stages(text: bytes | None, after: Any, *, made: bool = True, **columns: str) -> Stages:
    """What a row says, with the results of what is done unless these were not `made`."""
    try:
        said = json.loads(text or b"null")
    except (ValueError, RecursionError):
        said = None
    rows = (
        [{"stage": stage.encode(), "result": value.encode()} for _, _, stage, value, _ in results("", said)]
        if made
        else []
    )
    cells = Cells({"stages": text, **{name: value.encode() for name, value in columns.items()}}, [])
    side_rows = {"results": [Cells(row, []) for row in rows if row["stage"].decode() in after]}
    record = JSON.for_stages(after).to_record(cells, side_rows)
    return StagesReader(after, JSON.states).read(record)


def micros(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000_000)


def only(value: Any) -> Entry:
    """The entry of a pipeline with one stage."""
    return read_stages(bytes_of(value), {"a": []}).begun["a"]


def kinds(value: Any, after: Any = None) -> list[str]:
    return [problem.kind for problem in read_stages(bytes_of(value), after or {"a": []}).problems]


@pytest.mark.parametrize("name", CASES)
def test_a_row_becomes_what_it_says_and_what_it_cannot_say_is_told(name: str):
    case = CASES[name]
    read = read_stages(bytes_of(case.stages), AFTER, made=case.results)
    assert {
        stage: "pending" if entry.state is State.IN_PROGRESS else str(entry.state)
        for stage, entry in read.begun.items()
    } == case.states
    told = [problem.kind for problem in (*read.problems, *read_data(bytes_of(case.data)).problems)]
    assert told == list(case.problems)


def test_times_errors_and_states_are_kept():
    assert only(timed("a", "failed", error="no pages")) == Entry(
        State.FAILED, micros("2024-05-01T10:00:00"), micros("2024-05-01T10:00:02"), "no pages"
    )


TIMES = {
    "2024-05-01T10:00:00": "2024-05-01T10:00:00",
    "2024-05-01 10:00:00": "2024-05-01T10:00:00",
    "2024-05-01T10:00:00.250000": "2024-05-01T10:00:00.250000",
    "2024-05-01T10:00:00Z": "2024-05-01T10:00:00",
    "2024-05-01T12:00:00+02:00": "2024-05-01T10:00:00",
    "2024-05-01": "2024-05-01T00:00:00",
    " 2024-05-01T10:00:00 ": "2024-05-01T10:00:00",
    1714557600: "2024-05-01T10:00:00",
    1714557600.25: "2024-05-01T10:00:00.250000",
    1714557600250: "2024-05-01T10:00:00.250000",
    "1714557600.25": "2024-05-01T10:00:00.250000",
    0: "1970-01-01T00:00:00",
}


@pytest.mark.parametrize("written", TIMES, ids=str)
def test_a_time_is_read_in_every_usual_form(written: object):
    assert only({"a": "done", "a_ended": written}).ended_at == micros(TIMES[written])


@pytest.mark.parametrize(
    "written",
    ["soon", "2024-13-01", "1969-01-01", -5, True, [1], {}, 1e300, "9" * 25, "NaN", "10:00", "2024-05-01T25:00"],
    ids=str,
)
def test_a_time_that_is_none_is_told_and_left_out(written: object):
    read = read_stages(bytes_of({"a": "done", "a_started": written, "a_ended": "2024-05-01"}), {"a": []})
    assert [problem.kind for problem in read.problems] == ["time_unreadable"]
    assert read.begun["a"].started_at is None


def test_the_length_stands_in_for_the_time_that_is_missing():
    at = micros("2024-05-01T10:00:00")
    given = {"a": "done", "a_elapsed_s": 2.5}
    assert only({**given, "a_started": "2024-05-01T10:00:00"})[1:3] == (at, at + 2_500_000)
    assert only({**given, "a_ended": "2024-05-01T10:00:00"})[1:3] == (at - 2_500_000, at)
    assert kinds({**given, "a_ended": "2024-05-01"}) == []
    assert kinds(given) == ["end_missing"]


@pytest.mark.parametrize("length", ["long", -1, True, [2], "nan", 1e300], ids=str)
def test_a_length_that_is_none_is_told(length: object):
    assert kinds({"a": "done", "a_ended": "2024-05-01", "a_elapsed_s": length}) == ["elapsed_unreadable"]


def test_json_numbers_that_json_does_not_have_are_told_and_spoil_nothing_else():
    """Python writes them into JSON unless it is told not to."""
    text = b'{"a": "done", "a_ended": "2024-05-01", "a_elapsed_s": NaN, "a_started": Infinity}'
    assert [problem.kind for problem in read_stages(text, {"a": []}).problems] == [
        "time_unreadable",
        "elapsed_unreadable",
    ]


def test_a_status_is_read_whatever_its_capitals():
    assert only({"a": " Done ", "a_ended": "2024-05-01"}).state is State.DONE


def test_a_name_that_could_be_a_time_of_one_stage_is_the_status_of_another():
    after = {"get": [], "get_started": ["get"]}
    read = read_stages(
        bytes_of({"get": "done", "get_ended": 5, "get_started": "failed", "get_started_ended": 6}), after
    )
    assert {stage: entry.state for stage, entry in read.begun.items()} == {"get": "done", "get_started": "failed"}
    assert read.begun["get_started"].ended_at == 6_000_000


def test_stages_that_meet_wait_for_all_before_them():
    done = {**timed("a", "done"), **timed("b", "done")}
    assert list(read_stages(bytes_of({**done, "c": "pending", "d": "pending"}), DIAMOND).begun) == ["a", "b", "c"]
    assert list(read_stages(bytes_of({**done, **timed("c", "skipped")}), DIAMOND).begun) == ["a", "b", "c", "d"]
    assert kinds({**done, "c": "pending", **timed("d", "done")}, DIAMOND) == ["out_of_order"]


def test_each_unknown_stage_is_told_once_with_its_status():
    read = read_stages(bytes_of({"a": "pending", **timed("ocr", "done", error="x"), "b_started": 5}), {"a": []})
    assert [problem[:2] for problem in read.problems] == [("stage_unknown", "ocr"), ("stage_unknown", "b")]
    assert read.problems[0].found == '"done"'


def test_an_error_that_is_no_text_is_kept_as_json():
    assert only({"a": "failed", "a_ended": 5, "a_error": {"code": 503}}).error == '{"code": 503}'


def test_a_secret_in_an_old_error_is_not_taken_over():
    entry = only({"a": "failed", "a_ended": 5, "a_error": "cannot open postgresql://me:hunter22@db"})
    assert entry.error == "cannot open postgresql://me:***@db"
    [problem] = read_stages(bytes_of({"a": "done", "a_ended": 5, "a_error": "password=hunter22"}), {"a": []}).problems
    assert "hunter22" not in problem.found


def test_json_that_is_nested_without_end_is_no_json_to_speak_of():
    assert kinds("[" * 100_000) == ["column_unreadable"]
    assert read_data(b"[" * 100_000).problems[0].kind == "data_unreadable"
    assert read_data(b'{"a":' * 500 + b"1" + b"}" * 500).problems[0].kind == "data_refused"


@pytest.mark.parametrize(
    ("raw_key", "key"),
    [(b"book-1", "book-1"), ("bücher".encode(), "bücher"), (b"17", "17"), (b" x ", " x ")],
)
def test_a_key_is_the_key(raw_key: bytes, key: str):
    assert read_key(raw_key, 3) == (key, [])


@pytest.mark.parametrize("raw_key", [None, b"", b"  ", b"a\0b", b"\xff", b"k" * (MAX_KEY_BYTES + 1)], ids=str)
def test_a_key_that_cannot_name_an_item_is_replaced_by_the_number_of_the_row(raw_key: bytes | None):
    key, [problem] = read_key(raw_key, 3)
    assert (key, problem.kind) == ("legacy-row-3", "key_unusable")
    assert check_key(key)


@pytest.mark.parametrize(
    ("text", "data", "told"),
    [
        (None, {}, []),
        (b"", {}, []),
        (b'{"n": 1}', {"n": 1}, []),
        (b"[1]", {"legacy_data": [1]}, ["data_no_object"]),
        (b"null", {}, []),
        (b"{n}", {"legacy_data": "{n}"}, ["data_unreadable"]),
        (b"\xff", {"legacy_data": "\ufffd"}, ["data_unreadable"]),
        (b'{"n": NaN}', {"legacy_data": '{"n": NaN}'}, ["data_refused"]),
        (b'{"n": "\\u0000"}', {"legacy_data": '{"n": "\\u0000"}'}, ["data_refused"]),
        (b'{"n": "\\ud800"}', {"legacy_data": '{"n": "\\ud800"}'}, ["data_refused"]),
    ],
    ids=str,
)
def test_data_are_kept_whatever_they_are(text: bytes | None, data: dict[str, Any], told: list[str]):
    read = read_data(text)
    assert (read.value, [problem.kind for problem in read.problems]) == (data, told)
    assert codec.decode(read.text) == data


def test_a_key_that_could_not_be_kept_as_one_is_kept_beside_the_data():
    data = with_key(OldData({"n": 1}, '{"n":1}', []), b"\xff key")
    assert data.value == {"n": 1, "legacy_key": "\ufffd key"} == codec.decode(data.text)
    assert with_key(OldData({"legacy_key": 1}, "", []), b"x").value == {"legacy_key": 1}


states = st.sampled_from([*State, "finished", "DONE", "", None, 3, []])
times = st.sampled_from(["2024-05-01", "2024-05-02", "never", 5, -1, None, "", {}])
stage_entries = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys((*DIAMOND, "ocr"), states),
        **{
            f"{name}_{suffix}": times
            for name in (*DIAMOND, "ocr")
            for suffix in ("started", "ended", "elapsed_s", "error")
        },
    },
)


@given(stage_entries)
def test_whatever_the_entries_say_the_stages_are_where_a_pipeline_can_have_them(said: dict[str, Any]):
    """Nothing is open or finished behind a stage that has not passed, and whatever can begin has begun."""
    read = read_stages(json.dumps(said).encode(), DIAMOND)
    passed = {stage for stage, entry in read.begun.items() if entry.state in PASSED}
    for stage, before in DIAMOND.items():
        assert (stage in read.begun) == passed.issuperset(before)
    for entry in read.begun.values():
        if entry.started_at is not None and entry.ended_at is not None:
            assert entry.started_at <= entry.ended_at
        assert entry.state not in OPEN - {State.RETRY_LATER} or entry.error is None
    assert all(problem.kind in KINDS for problem in read.problems)


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode(errors="replace")))
def test_whatever_the_bytes_are_something_can_be_stored(text: bytes):
    read = read_stages(text, AFTER)
    assert "fetch" in read.begun
    assert codec.decode(read_data(text).text) == read_data(text).value
    assert check_key(read_key(text, 1)[0])
    assert all(problem.kind in KINDS for problem in read.problems)


def with_entries_twice(n: int) -> tuple[bytes, dict[str, list[str]]]:
    pairs = ", ".join(f'"s{i}": "done", "s{i}": "failed"' for i in range(n))
    return f"{{{pairs}}}".encode(), {"a": []}


def with_unknown_entries(n: int) -> tuple[bytes, dict[str, list[str]]]:
    return json.dumps({f"s{i}": {"was": "done"} for i in range(n)}).encode(), {"a": []}


def with_stages_that_run_again(n: int) -> tuple[bytes, dict[str, list[str]]]:
    """All but the last are done without a result: each needs that of the one before it."""
    after = {f"s{i}": [f"s{i - 1}"] if i else [] for i in range(n)}
    return json.dumps(dict.fromkeys([*after][:-1], "done")).encode(), after


def cpu_seconds(of_size: Any, n: int) -> float:
    text, after = of_size(n)
    best = float("inf")
    # Of this thread alone, and without collections of what other tests have left: the longer call would meet more of them.
    gc.disable()
    try:
        for _ in range(3):
            began = time.thread_time()
            read_stages(text, after, made=False)
            best = min(best, time.thread_time() - began)
    finally:
        gc.enable()
    return best


@pytest.mark.parametrize("of_size", [with_entries_twice, with_unknown_entries, with_stages_that_run_again])
def test_the_time_that_one_row_takes_grows_with_its_length_and_no_faster(of_size: Any):
    once, often = (cpu_seconds(of_size, n) for n in (500, 4_000))
    # Eight times the row: sixty-four times the time would be quadratic.
    assert often < 24 * once + 0.01, (once, often)


def test_every_stage_that_lacks_a_result_runs_again_from_the_first_one_on():
    text, after = with_stages_that_run_again(50)
    read = read_stages(text, after, made=False)
    assert read.again == [*after][:-1]
    assert {stage: entry.state for stage, entry in read.begun.items()} == {"s0": State.PENDING}
