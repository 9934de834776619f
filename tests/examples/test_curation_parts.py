"""The parts of examples.curation that touch no database: sitemaps, domains, pages, and the manners of web sites."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.curation.__main__ import main
from examples.curation.domain_extraction import domain_of, is_of, sitemaps_of
from examples.curation.fakes.fake_web import FakeWeb, serving_fake_web
from examples.curation.fakes.fake_world import SCHEMA, FakeAnswer, FakeWorld
from examples.curation.page_curation import ENOUGH, read, score
from examples.curation.page_service import contacts_in
from examples.curation.sitemap_xml import Entry, parse
from examples.curation.web import Unreachable, Web
from holdfast import Permanent, RetryLater
from holdfast.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
AT = "http://old-mill.example/sitemaps/one.xml"


def sitemap(inside: str, root: str = "urlset") -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?><{root} xmlns="{SCHEMA}">{inside}</{root}>'.encode()


# Sitemaps -------------------------------------------------------------------------------------------------------------


@pytest.mark.req("S6")
def test_a_sitemap_lists_pages_each_once_with_what_it_says_of_them():
    body = sitemap(
        "<url><loc> http://old-mill.example/a?x=1&amp;y=2 </loc><lastmod>2024-05-01</lastmod><priority>1</priority></url>"
        "<url><loc><![CDATA[/relative]]></loc></url>"
        "<url><loc>http://old-mill.example/a?x=1&amp;y=2</loc></url>"
        "<url><loc></loc></url><url/><url><loc>mailto:x@old-mill.example</loc></url>"
        '<url><image:loc xmlns:image="urn:pictures">/picture</image:loc></url>'
        "<other><loc>http://old-mill.example/other</loc></other>"
    )
    found = parse(AT, body)
    assert not found.is_index
    assert found.entries == (
        Entry("http://old-mill.example/a?x=1&y=2", "2024-05-01"),
        Entry("http://old-mill.example/relative"),
    )


@pytest.mark.req("S6")
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_an_index_lists_sitemaps(packed: bool):
    body = sitemap("<sitemap><loc>http://old-mill.example/two.xml.gz</loc></sitemap>", "sitemapindex")
    found = parse(AT, gzip.compress(body) if packed else body)
    assert found.is_index and found.entries == (Entry("http://old-mill.example/two.xml.gz"),)


def test_a_sitemap_without_a_namespace_or_in_another_encoding_is_read():
    assert parse(AT, b"<urlset><url><loc>http://a.example/</loc></url></urlset>").entries == (
        Entry("http://a.example/"),
    )
    text = (
        '<?xml version="1.0" encoding="ISO-8859-1"?><urlset><url><loc>http://a.example/caf\u00e9</loc></url></urlset>'
    )
    assert parse(AT, text.encode("latin-1")).entries == (Entry("http://a.example/caf\u00e9"),)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "broken XML"),
        (b"<urlset><url>", "broken XML"),
        (b"<html><body>404</body></html>", "its root is <html>"),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><urlset/>', "document type"),
        (b'<!DOCTYPE urlset SYSTEM "file:///etc/hostname"><urlset/>', "document type"),
        (gzip.compress(sitemap(""))[:-9], "cut short"),
        (b"\x1f\x8bnonsense", "broken gzip"),
        (gzip.compress(b" " * 50_000_001, 1), "more than 50000000 bytes"),
    ],
    ids=["empty", "truncated", "a page", "entities", "a file", "half a gzip", "no gzip", "too large"],
)
def test_what_is_no_sitemap_is_told_and_never_tried_again(body: bytes, said: str):
    with pytest.raises(Permanent, match=said):
        parse(AT, body)


# Domains and pages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "website",
    [
        "http://old-mill.example",
        "https://www.Old-Mill.example/shop?x",
        "old-mill.example",
        " WWW.OLD-MILL.EXAMPLE:80/ ",
        "//old-mill.example",
        "http://user:secret@old-mill.example./",
    ],
)
def test_a_domain_is_found_however_it_was_typed(website: str):
    assert domain_of(website) == "old-mill.example"


def test_a_domain_in_other_letters_is_written_as_the_net_writes_it():
    assert domain_of("http://www.b\u00fccher.example/") == "xn--bcher-kva.example"
    assert domain_of("www.example") == "www.example"


@pytest.mark.parametrize(
    "website", [None, "", "  ", "none", "http://", "http://127.0.0.1/", "http://[::1", "a..example", "x y"]
)
def test_what_names_no_domain_is_told(website: str | None):
    with pytest.raises(Permanent):
        domain_of(website)


def test_nobody_speaks_for_the_pages_of_others():
    assert is_of("old-mill.example", "https://www.old-mill.example/a")
    for url in (
        "http://new-mill.example/",
        "ftp://old-mill.example/",
        "http://old-mill.example.evil.example/",
        "nowhere",
    ):
        assert not is_of("old-mill.example", url)


def test_a_page_is_worth_it_if_people_can_be_reached_there():
    title, text = read(
        b"<title>A &amp; B</title><script>contact()</script><p>Visit us:\n <b>contact</b> a@b.example\0</p>"
    )
    assert (title, text) == ("A & B", "Visit us: contact a@b.example")
    assert score(title, text) >= ENOUGH
    assert score("", "") == 0 < score("A title", "word " * 1000) < ENOUGH


def test_contacts_are_found_once_each():
    text = "Write to Desk@Old-Mill.example. Or desk@old-mill.example; call +44 131 000 0001, not 12."
    assert contacts_in(text) == [("mail", "desk@old-mill.example"), ("phone", "+441310000001")]


# The web --------------------------------------------------------------------------------------------------------------


class Rude(FakeWorld):
    """A site that answers as its path asks."""

    def answer(self, url: str, nth: int) -> FakeAnswer:
        code = int(url.rpartition("/")[2] or 200)
        headers = {503: (("Retry-After", "90000"),), 302: (("Location", "/302"),), 429: (("Retry-After", "7"),)}
        return FakeAnswer(code, b"[1]", headers.get(code, ()))


@pytest.fixture
def web() -> Iterator[Web]:
    with serving_fake_web(Rude()) as site:
        yield Web(site.place, 5.0)


@pytest.mark.parametrize(
    ("path", "error", "said"),
    [
        ("404", Permanent, "answered 404"),
        ("500", Unreachable, "answered 500"),
        ("302", Permanent, "answered 302"),
        ("200", Permanent, "an object was expected"),
        ("403", Permanent, "403"),
    ],
)
def test_an_answer_says_whether_to_ask_again(web: Web, path: str, error: type[Exception], said: str):
    with pytest.raises(error, match=said):
        web.get_json(f"http://rude.example/{path}")


@pytest.mark.parametrize(("path", "after"), [("429", 7.0), ("503", 3600.0)])
def test_a_site_may_say_when_to_come_again_but_not_next_week(web: Web, path: str, after: float):
    with pytest.raises(RetryLater) as raised:
        web.get(f"http://rude.example/{path}")
    assert raised.value.after_seconds == after


def test_who_does_not_answer_is_unreachable_and_what_is_no_address_is_not_asked(web: Web):
    with serving_fake_web(Rude()) as gone:
        place = gone.place
    with pytest.raises(Unreachable, match="rude"):
        Web(place, 1.0).get("http://rude.example/200")
    with pytest.raises(Permanent, match="no address"):
        web.get("file:///etc/hostname")


def test_robots_name_sitemaps_of_their_own_site_and_otherwise_it_is_the_usual_place():
    world = FakeWorld()
    with serving_fake_web(world) as site:
        web = Web(site.place)
        found = {world.domain(n): sitemaps_of(world.domain(n), web) for n in range(world.sites)}
    assert found == {
        world.domain(n): [url for url in world.sitemaps(n) if "/a.xml" not in url and "/b.xml" not in url]
        for n in range(world.sites)
    }


# The command line -----------------------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Types a command, and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("CURATION_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str, **variables: str) -> str:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["curation", *arguments])
        main(standalone_mode=False)
        return capsys.readouterr().out

    return run


@pytest.mark.req("S6", "S7")
def test_the_commands_of_the_readme_do_what_it_says(command: Callable[..., str]):
    assert "20 places are queued in sqlite:///curation.db" in command("init")
    with pytest.raises(UsageError, match="name an empty database"):
        command("init")
    with serving_fake_web(FakeWorld()) as site:
        quick = {"CURATION_VIA": site.place, "CURATION_POLL": "50ms", "CURATION_FIRST_PAUSE": "0.02"}
        assert command("alone", "deep scan", "--drain", "--quiet", **quick).startswith("claimed 2")
        said = command("run", "--until-done")
    assert "page service: claimed 12, completed 12" in said
    assert command("status").splitlines()[1].split() == ["deep", "scan", "0", "0", "18", "2"]
    with pytest.raises(UsageError, match="'deep scans' is none of"):
        command("run", "deep scans")


def test_a_server_that_was_left_waiting_ends_with_its_test():
    with serving_fake_web(FakeWorld()) as site:
        site.pause()
        with pytest.raises(Unreachable):
            Web(site.place, 0.05).get(site.world.listing(1))
        assert isinstance(site, FakeWeb) and site.asked[site.world.listing(1)] == 1
