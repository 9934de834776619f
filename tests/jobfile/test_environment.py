"""Variables in a job file: filled in, missing ones told with their place, and their values never shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.jobfile import JobFileError, Secrets
from tests.jobfile.conftest import Folder

STAGES = "    stages:\n      extract: {handler: shelf.extract}\n"
GOOD = f"pipelines:\n  books:\n{STAGES}"


@pytest.mark.parametrize(
    ("written", "environ", "store"),
    [
        ("${URL}", {"URL": "sqlite:///a.db"}, "sqlite:///a.db"),
        ("${URL:-sqlite:///b.db}", {"URL": "sqlite:///a.db"}, "sqlite:///a.db"),
        ("${URL:-sqlite:///b.db}", {}, "sqlite:///b.db"),
        ("${URL:-sqlite:///b.db}", {"URL": ""}, "sqlite:///b.db"),
        ("sqlite:///${A}-${B:-2}.db", {"A": "one"}, "sqlite:///one-2.db"),
        ("sqlite:///$${A}.db", {"A": "one"}, "sqlite:///${A}.db"),
        ("sqlite:///$A.db", {"A": "one"}, "sqlite:///$A.db"),
        # What a variable holds is taken as it is.
        ("sqlite:///${A}.db", {"A": "${B}", "B": "two"}, "sqlite:///${B}.db"),
        ("'sqlite:///${A}.db'", {"A": "x: [y"}, "sqlite:///x: [y.db"),
    ],
)
def test_a_variable_is_filled_in_where_it_stands(
    written: str, environ: dict[str, str], store: str, folder: Folder
) -> None:
    assert folder.load(f"store: {written}\n{GOOD}", environ).store == store


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("${URL}", "1:8: store: the variable URL is not set; set it, or write ${URL:-default}"),
        ("${}", "1:8: store: a reference to a variable that cannot be read, expected ${NAME}, ${NAME:-default} or"),
        ("${a-b}", "1:8: store: a reference to a variable that cannot be read"),
        ("${A:-${B}}", "1:8: store: a reference to a variable that cannot be read"),
        ("'${A'", "1:8: store: a reference to a variable that cannot be read"),
    ],
)
def test_a_variable_that_is_missing_or_misspelled_is_told_with_its_place(
    written: str, said: str, folder: Folder
) -> None:
    [line] = folder.wrong(f"store: {written}\n{GOOD}")
    assert line.startswith(said)


def test_every_missing_variable_is_told_along_with_everything_else(folder: Folder) -> None:
    text = GOOD + "    sources:\n      inbox: {files: '${ROOT}/${NAME}'}\nalert: 1\n"
    assert [line.partition(";")[0] for line in folder.wrong(text)] == [
        "6:22: pipelines.books.sources.inbox.files: the variable ROOT is not set",
        "6:22: pipelines.books.sources.inbox.files: the variable NAME is not set",
        "7:1: alert: the key 'alert' is unknown, did you mean 'alerts'?",
    ]


def test_a_variable_that_is_no_text_is_refused(folder: Folder) -> None:
    [line] = folder.wrong(f"store: ${{URL}}\n{GOOD}", {"URL": "sqlite:///caf\udce9.db"})
    assert line == "1:8: store: the value of the variable URL is not UTF-8, expected a text"


def test_a_number_or_a_truth_value_may_come_from_a_variable(folder: Folder) -> None:
    text = (
        "resources:\n  gemini: {concurrency: '${SLOTS}', adaptive: '${ADAPT}', breaker: {share: '${SHARE}'}}\n"
        "pipelines:\n  books:\n    stages:\n      extract: {handler: shelf.extract, max_attempts: '${TRIES:-7}'}\n"
    )
    job = folder.load(text, {"SLOTS": "8", "ADAPT": "true", "SHARE": "0.25"})
    assert job.resources == {"gemini": {"concurrency": 8, "adaptive": True, "breaker": {"share": 0.25}}}
    assert job.pipelines[0].stages[0].max_attempts == 7


def test_a_text_stays_a_text_whatever_the_variable_holds(folder: Folder) -> None:
    job = folder.load(GOOD.replace("extract}", "extract, version: '${V}'}"), {"V": "1"})
    assert job.pipelines[0].stages[0].version == "1"


SECRET = "hunter2-is-a-Secret"

#: Where a wrong value of a variable can stand.
PLACES = {
    "a rate": "resources: {gemini: {rate: '${secret:X}'}}\n",
    "an amount": "resources: {gemini: {budget: '${secret:X}'}}\n",
    "a time": "resources: {gemini: {cool: '${secret:X}'}}\n",
    "a zone": "resources: {gemini: {zone: '${secret:X}'}}\n",
    "a number": "resources: {gemini: {burst: '${secret:X}'}}\n",
    "a truth value": "resources: {gemini: {adaptive: '${secret:X}'}}\n",
    "a mapping": "resources: {gemini: '${secret:X}'}\n",
    "a store": "store: ${secret:X}\n",
    "a size": "    tuning: {guards: {disk_free: '${secret:X}'}}\n",
    "hours": "    tuning: {guards: {hours: '${secret:X}'}}\n",
    "a guard": "    tuning: {guards: {handler: '${secret:X}'}}\n",
    "a merge": "    merge: ${secret:X}\n",
    "a handler": "      chunk: {handler: '${secret:X}'}\n",
    "a handler's module": "      chunk: {handler: '${secret:X}.extract'}\n",
    "a handler's name": "      chunk: {handler: 'shelf.${secret:X}'}\n",
    "a stage before": "      chunk: {handler: shelf.chunk, after: '${secret:X}'}\n",
    "a resource": "      chunk: {handler: shelf.chunk, resource: '${secret:X}'}\n",
    "an estimate": "      chunk: {handler: shelf.chunk, estimate: '${secret:X}'}\n",
    "a child": "      chunk: {handler: shelf.chunk, after_children: '${secret:X}'}\n",
    "a way to isolate": "      chunk: {handler: shelf.chunk, isolate: '${secret:X}'}\n",
}


@pytest.mark.fault(82)
@pytest.mark.parametrize("secret", [SECRET, 'it\'s "two"\nlines of it', "s3cr3t_" * 30, "hunter2", "h\\n2"])
@pytest.mark.parametrize("place", PLACES)
def test_the_value_of_a_secret_variable_is_never_shown_in_an_error(place: str, secret: str, folder: Folder) -> None:
    text = PLACES[place] + GOOD if PLACES[place][0] != " " else GOOD + PLACES[place]
    with pytest.raises(JobFileError) as caught:
        folder.load(text, {"X": secret})
    said = str(caught.value)
    for shown in (secret, secret.lower(), repr(secret)[1:-1], secret[:12], secret[-12:]):
        assert shown not in said
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.fault(82)
@pytest.mark.parametrize("show", [repr, str, lambda given: repr(given)[:40], lambda given: json.dumps(given)])
def test_nor_in_what_others_say_of_a_source_or_an_alert(show: Any, folder: Folder) -> None:
    def refuse(name: str, given: dict[str, Any], *, where: str, folder: Any = None) -> None:
        raise UsageError(f"{where}: url: {show(given['url'])} is not taken")

    text = GOOD + "    sources: {feed: {url: 'https://${X}/a'}}\nalerts: {loud: {url: '${X}'}}\n"
    lines = folder.wrong(text, {"X": "q7" * 40}, read_source=refuse, read_alert=refuse)
    assert len(lines) == 2
    assert "q7q7" not in "".join(lines)


@pytest.mark.fault(82)
def test_secrets_are_masked_in_any_text_as_they_are_and_as_they_are_quoted(folder: Folder) -> None:
    environ = {"URL": "postgresql://me:p%40ss-word@db/books", "TOKEN": 'a"b\nc-token', "N": "7"}
    text = f"store: ${{URL}}\n{GOOD}    sources: {{feed: {{url: 'https://x/${{TOKEN}}', most: '${{N}}'}}}}\n"
    secrets = folder.load(text, environ).secrets
    assert secrets.mask(environ["URL"]) == "postgresql://me:***@db/books"
    for secret in (
        "p%40ss-word",
        "p@ss-word",
        environ["TOKEN"],
        repr(environ["TOKEN"]),
        'a\\"b\\nc-token',
    ):
        assert secrets.mask(f"before {secret} after").strip("'") in ("before *** after", "before '***' after")
    assert secrets.mask("password authentication failed: p@ss-word") == "password authentication failed: ***"
    assert secrets.mask("attempt 7 of 7") == "attempt 7 of 7", "what is so short is no secret"
    assert secrets.mask("nothing here") == "nothing here"


# Which variables are secrets ------------------------------------------------------------------------------------------


def shown(folder: Folder, written: str, environ: dict[str, str]) -> str:
    """What an error says about a resource's zone that is written like this."""
    [line] = folder.wrong(f"resources: {{gemini: {{zone: '{written}'}}}}\n{GOOD}", environ)
    return line


@pytest.mark.req("J15")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NEWSROOM_SITE", "http://127.0.0.1:8050"),
        ("SITE", "https://db-cluster-primary-01.eu-central-1.example:5432/books"),
        ("ROOT", "/srv/data/2026/books"),
        ("ZONE", "Mars/Olympus_Mons"),
        ("KEYBOARD", "qwerty-2"),
        ("TOKENS_PER_MINUTE", "90000"),
    ],
)
def test_what_is_no_secret_can_be_read_in_errors(name: str, value: str, folder: Folder) -> None:
    assert value in shown(folder, f"${{{name}}}", {name: value})
    job = folder.load(GOOD.replace("extract}", f"extract, version: '${{{name}}}'}}"), {name: value})
    assert job.secrets.mask(f"{value} did not answer") == f"{value} did not answer"


@pytest.mark.fault(82)
@pytest.mark.req("J15", "V12")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GEMINI_KEY", "plain-words"),
        ("GEMINI_API_KEY", "plain-words"),
        ("HOOK_TOKEN", "plain-words"),
        ("DB_PASSWORD", "letmein"),
        ("DB_PASS", "letmein"),
        ("GH_PAT", "plain-words"),
        ("SESSION_COOKIE", "plain-words"),
        ("HOOK", "https://hooks.example/services/T0A1B2/f9d8s7a6q5w4e3r2t1y0"),
        ("HOOK", "https://x.example/?access_token=abc12345"),
        ("MODEL", "sk-live-abcdefgh1234"),
        ("SOMETHING", "Bearer f00dfeed1234"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(name: str, value: str, folder: Folder) -> None:
    said = shown(folder, f"${{{name}}}", {name: value})
    assert value not in said and "the value of a secret variable" in said
    job = folder.load(GOOD.replace("extract}", f"extract, version: '${{{name}}}'}}"), {name: value})
    assert value not in job.secrets.mask(f"{value} did not answer")


@pytest.mark.fault(82)
@pytest.mark.req("J15", "V12")
def test_a_variable_that_is_said_to_be_a_secret_is_hidden_whatever_it_holds(folder: Folder) -> None:
    assert "berlin" not in shown(folder, "${secret:ZONE}", {"ZONE": "berlin-mitte"})
    assert "berlin-mitte" in shown(folder, "${ZONE}", {"ZONE": "berlin-mitte"})
    job = folder.load(f"store: ${{secret:URL:-sqlite:///b.db}}\n{GOOD}", {})
    assert job.store == "sqlite:///b.db"
    [line] = folder.wrong(f"store: ${{secret:URL}}\n{GOOD}")
    assert line.endswith("the variable URL is not set; set it, or write ${secret:URL:-default}")


@pytest.mark.fault(82)
def test_of_an_address_only_the_password_is_hidden(folder: Folder) -> None:
    secrets = folder.load(f"store: ${{URL}}\n{GOOD}", {"URL": "postgresql://me:open-sesame@db.example/books"}).secrets
    assert secrets.mask("no answer from postgresql://me:open-sesame@db.example/books") == (
        "no answer from postgresql://me:***@db.example/books"
    )


def test_the_longer_of_two_secrets_is_masked_as_a_whole() -> None:
    secrets = Secrets()
    secrets.add("secret")
    secrets.add("secret-and-more")
    assert secrets.mask("secret-and-more, secret") == "***, ***"


def test_a_password_that_stands_in_the_file_is_masked_too(folder: Folder) -> None:
    job = folder.load(f"store: postgresql://me:letmein@db/books?sslpassword=other-one\n{GOOD}")
    assert job.secrets.mask("letmein or other-one") == "*** or ***"
    assert Secrets().mask("letmein") == "letmein"


@pytest.mark.fault(82)
def test_a_job_does_not_show_its_secrets_when_it_is_printed(folder: Folder) -> None:
    text = f"store: sqlite:///${{X}}\n{GOOD}    sources: {{feed: {{url: '${{X}}'}}}}\nalerts: {{a: {{webhook: '${{X}}'}}}}\n"
    text = text.replace("extract}", "extract, version: '${X}'}").replace("${X}", "${secret:X}")
    job = folder.load(text, {"X": SECRET})
    assert SECRET in job.pipelines[0].stages[0].version
    assert SECRET not in f"{job} {job!r} {job.secrets} {job.secrets!r}"
