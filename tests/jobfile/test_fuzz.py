"""Whatever is in the file: a job, or an error that says where; never anything else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.jobfile import JobDefinition, JobFileError, Problem, load
from holdfast.jobfile.problems import SHOWN
from tests.jobfile.conftest import MODULE
from tests.jobfile.test_building import FULL

pytestmark = [pytest.mark.fault(61), pytest.mark.req("J15")]

#: On a busy machine a single example may take long; that says nothing about the code.
at_leisure = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "shelf.py").write_text(MODULE)
    path, modules = list(sys.path), set(sys.modules)
    yield folder / "holdfast.yaml"
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


def check(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    problems: tuple[Problem, ...] = ()
    said = ""
    try:
        assert isinstance(load(file, environ={"HOME": "/home"}), JobDefinition)
    except JobFileError as error:
        problems, said = error.problems, str(error)
    # YAML knows other ends of a line than this one; each is two bytes at least, or follows one.
    most = content.count(b"\n") + content.count(b"\r") + content.count(b"\xc2\x85") + content.count(b"\xe2\x80") + 2
    for one, line in zip(problems[:SHOWN], said.split("\n"), strict=False):
        assert line.startswith(f"{file}:{one.line}:{one.column}: ")
        assert 1 <= one.line <= most and one.column >= 1


#: Pieces of which YAML, and what it is abused with, is made.
PIECES = st.sampled_from(
    [
        *"[]{},:?-&*!|>'\"%@`#~<=\t \n\r",
        "\n  ",
        "\n    ",
        "- ",
        ": ",
        "? ",
        "&a ",
        "*a",
        "<<: *a",
        "!!python/name:os.system",
        "!!int ",
        "!!map ",
        "!!binary ",
        "---\n",
        "...\n",
        "%YAML 1.1\n",
        "%TAG ! x\n",
        "\\",
        '"\\x',
        '"\\u00',
        "${",
        "${HOME}",
        "${NOT_SET}",
        "${A:-b}",
        "$$",
        "null",
        "true",
        "1",
        "1e400",
        "0x1f",
        "\ufeff",
        "\u2028",
        "\x85",
        "\x00",
        "é",
        "😀",
        "store",
        "pipelines",
        "books",
        "stages",
        "extract",
        "handler",
        "shelf.extract",
        "tuning",
        "guards",
        "resources",
        "after",
    ]
)


@at_leisure
@given(st.lists(PIECES, max_size=40).map("".join))
@example('a: "\\UFFFFFFFF"')
@example("a: &a [*a]")
@example("<<: [{}, 3]")
@example("? {a: b}\n: c")
@example("? - a\n: c")
def test_any_text_made_of_yaml_is_a_job_or_an_error(file: Path, text: str) -> None:
    check(file, text.encode())


@at_leisure
@given(st.text() | st.binary())
def test_any_text_or_bytes_are_a_job_or_an_error(file: Path, content: str | bytes) -> None:
    check(file, content.encode(errors="surrogatepass") if isinstance(content, str) else content)


ODD = st.sampled_from(["3", "[]", "{}", "x", "null", "-1", "1.5", "true", "[x]", "{x: y}", "'${HOME}'", "[[3]]"])


@at_leisure
@given(st.data())
def test_a_file_in_order_with_something_changed_is_a_job_or_an_error(file: Path, data: st.DataObject) -> None:
    """Lines left out, doubled and moved; values put in place of others."""
    lines = FULL.splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        how = data.draw(st.sampled_from(["drop", "double", "indent", "value", "piece"]))
        if how == "drop":
            lines[at] = ""
        elif how == "double":
            lines[at] += "\n" + lines[at]
        elif how == "indent":
            lines[at] = "  " + lines[at]
        elif how == "value":
            value = data.draw(ODD)
            lines[at] = lines[at].partition(": ")[0] + f": {value}"
        else:
            cut = data.draw(st.integers(0, len(lines[at])))
            lines[at] = lines[at][:cut] + data.draw(PIECES) + lines[at][cut:]
    check(file, "\n".join(lines).encode())


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.sampled_from(
        [
            "shelf.extract",
            "60/min",
            "30m",
            "0.40",
            "gemini",
            "Europe/Berlin",
            "22:00-06:00",
            "5GB",
            "nowhere.x",
            "os.path.join",
        ]
    )
)
KEYS = st.sampled_from(
    [
        "handler",
        "after",
        "version",
        "timeout",
        "backoff",
        "first",
        "resource",
        "estimate",
        "units",
        "rate",
        "burst",
        "zone",
        "hours",
        "breaker",
        "share",
        "guards",
        "stages",
        "extract",
        "files",
    ]
)
SETTINGS = (
    "after",
    "version",
    "timeout",
    "batch",
    "isolate",
    "backoff",
    "compatible_from",
    "resource",
    "estimate",
    "units",
    "normalise",
    "after_children",
    "max_reruns_per_hour",
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))


@settings(at_leisure, max_examples=50)
@given(
    st.fixed_dictionaries(
        {
            "pipelines": st.fixed_dictionaries(
                {
                    "books": st.fixed_dictionaries(
                        {
                            "stages": st.dictionaries(
                                KEYS,
                                st.fixed_dictionaries(
                                    {"handler": st.just("shelf.extract") | SCALARS},
                                    optional=dict.fromkeys(SETTINGS, VALUES),
                                ),
                                max_size=3,
                            )
                        },
                        optional={"tuning": VALUES, "merge": VALUES, "sources": VALUES},
                    )
                }
            )
        },
        optional={"resources": VALUES, "alerts": VALUES, "store": VALUES},
    )
)
def test_any_value_in_any_place_is_a_job_or_an_error(file: Path, document: object) -> None:
    import yaml

    check(file, yaml.safe_dump(document, allow_unicode=True).encode(errors="surrogatepass"))
