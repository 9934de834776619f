"""Sitemaps and feeds: what is in them, what has not changed, and what an XML document may not do to us."""

from __future__ import annotations

import gzip
import io
import tracemalloc

import pytest

from holdfast.sources import SourceFailed
from holdfast.sources.xml import records

pytestmark = pytest.mark.req("J20")

NS = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'


def urlset(*locations: str) -> str:
    return f'<?xml version="1.0"?><urlset {NS}>{"".join(f"<url><loc>{one}</loc></url>" for one in locations)}</urlset>'


def index(*locations: str) -> str:
    return f"<sitemapindex {NS}>{''.join(f'<sitemap><loc>{one}</loc></sitemap>' for one in locations)}</sitemapindex>"


def sitemap(url: str, **more):
    return {"sitemap": url, "allow_private": True, **more}


def feed(url: str, **more):
    return {"feed": url, "allow_private": True, **more}


# Sitemaps -------------------------------------------------------------------------------------------------------------


def test_pages_of_a_sitemap_have_their_address_as_key_however_it_is_written(look, site):
    url = site.put(
        "/sitemap.xml",
        f"""<urlset {NS} xmlns:i="http://www.google.com/schemas/sitemap-image/1.1">
        <url><loc> HTTP://Example.org:80/a%7eb#top </loc><lastmod>2026-03-02</lastmod>
            <i:image><i:loc>https://example.org/picture.png</i:loc></i:image></url>
        <url><loc><![CDATA[https://example.org/x?b=1&a=2]]></loc></url></urlset>""",
    )
    assert look(sitemap(url)).items == {
        "http://example.org/a~b": {"url": "http://Example.org:80/a%7eb#top", "lastmod": "2026-03-02"},
        "https://example.org/x?b=1&a=2": {"url": "https://example.org/x?b=1&a=2"},
    }


def test_an_index_leads_to_all_its_sitemaps_packed_or_not(look, site):
    site.put("/1.xml", urlset("https://example.org/1"))
    site.put("/2.xml.gz", gzip.compress(urlset("https://example.org/2").encode()))
    site.put("/3.xml", index("/4.xml"))
    site.put("/4.xml", urlset("https://example.org/4"))
    url = site.put("/sitemap.xml", index("/1.xml", f"{site.url}/2.xml.gz", "/3.xml", "/1.xml"))
    assert sorted(look(sitemap(url)).items) == [f"https://example.org/{n}" for n in (1, 2, 4)]
    assert sorted(site.asked) == ["/1.xml", "/2.xml.gz", "/3.xml", "/4.xml", "/sitemap.xml"]


def test_only_those_sitemaps_of_an_index_are_read_that_have_changed(look, site):
    site.put("/1.xml", urlset("https://example.org/1"), etag=True)
    site.put("/2.xml", urlset("https://example.org/2"))
    url = site.put("/sitemap.xml", index("/1.xml", "/2.xml"), etag=True)
    assert len(look(sitemap(url)).items) == 2
    again = look(sitemap(url))
    assert (again.items, sorted(again.kept)) == ({}, [f"{site.url}/1.xml", f"{site.url}/2.xml"])
    site.put("/2.xml", urlset("https://example.org/2", "https://example.org/3"))
    third = look(sitemap(url))
    assert (sorted(third.items), third.kept) == (
        ["https://example.org/2", "https://example.org/3"],
        [f"{site.url}/1.xml"],
    )


def test_a_sitemap_of_an_index_that_fails_is_counted_and_the_others_are_read(look, site):
    site.put("/1.xml", "<urlset><url>")
    site.put("/3.xml", urlset("https://example.org/3"))
    url = site.put("/sitemap.xml", index("/1.xml", "/gone.xml", "/3.xml", "ftp://x/y", "http://169.254.169.254/latest"))
    looked = look(sitemap(url))
    assert (list(looked.items), looked.bad) == (["https://example.org/3"], 3 + 1)
    assert f"{site.url}/gone.xml" in looked.kept


def test_an_index_of_which_nothing_can_be_read_has_failed(look, site):
    with pytest.raises(SourceFailed, match=r"none of the sitemaps of .* could be read; the first: .*answered 404"):
        look(sitemap(site.put("/sitemap.xml", index("/gone.xml"))))


def test_a_sitemap_that_was_not_read_to_its_end_is_read_again(look, site):
    url = site.put("/sitemap.xml", urlset("https://example.org/1", "https://example.org/2"), etag=True)
    stream = look.open(sitemap(url)).look(look.memory)
    next(stream)
    stream.close()
    assert len(look(sitemap(url)).items) == 2


@pytest.mark.fault(80)
def test_indexes_without_end_are_cut(look, site):
    def endless(request):
        n = int(request.path.strip("/") or 0)
        request.answer(200, index(*(f"/{n * 10 + i}" for i in range(1, 4))).encode())

    site.pages = type("Endless", (dict,), {"get": lambda self, *_: endless})()
    with pytest.raises(SourceFailed, match="deeper than 3 levels"):
        look(sitemap(f"{site.url}/0"))
    site.pages = {"/": lambda request: request.answer(200, index(*(f"/{n}" for n in range(50))).encode())}
    with pytest.raises(SourceFailed, match=r"more than 5 sitemaps; if that is right, set pages"):
        look(sitemap(f"{site.url}/", pages=5))
    assert len(site.asked) < 20


def test_an_index_is_not_read_beyond_the_sitemaps_that_are_allowed(look, site):
    """What comes after them is not well-formed; nobody gets there."""
    site.put("/s.xml", index(*(f"/{n}.xml" for n in range(5000))).removesuffix("</sitemapindex>") + "<" * 1000)
    for number in range(4):
        site.put(f"/{number}.xml", urlset(f"https://example.org/{number}"))
    source = look.open(sitemap(f"{site.url}/s.xml", pages=5))
    stream = source.look({})
    assert [next(stream).key for _ in range(4)] == [f"https://example.org/{number}" for number in range(4)]
    with pytest.raises(SourceFailed, match=r"more than 5 sitemaps; if that is right, set pages"):
        next(stream)
    assert source.bad == 0


@pytest.mark.fault(80)
@pytest.mark.parametrize("begin", ["<rss><item a='", "<rss><!--", "<rss><?x ", "<a"])
def test_a_tag_without_an_end_is_given_up_before_it_takes_long(begin):
    file = io.BytesIO(begin.encode() + b"y" * 20_000_000)
    with pytest.raises(
        SourceFailed, match="the feed has a tag or a comment of more than 1,000,000 bytes, which is not read"
    ):
        list(records(file, ("item",), "the feed"))
    assert file.tell() < 1_200_000


def test_a_long_tag_is_read():
    file = io.BytesIO(b"<rss><item a='" + b"y" * 400_000 + b"'/></rss>")
    assert [len(one.attributes["a"]) for one in records(file, ("item",), "the feed") if one.name] == [400_000]


def test_a_page_without_an_address_is_skipped_and_counted(look, site):
    url = site.put(
        "/s.xml", f"<urlset {NS}><url/><url><loc>mailto:x@y</loc></url><url><loc>/relative</loc></url></urlset>"
    )
    looked = look(sitemap(url))
    assert (list(looked.items), looked.bad) == ([f"{site.url}/relative"], 2)


# Feeds ----------------------------------------------------------------------------------------------------------------

RSS = """<?xml version="1.0" encoding="ISO-8859-1"?><rss version="2.0" xmlns:media="http://search.yahoo.com/mrss/"><channel>
<title>News</title><link>https://example.org/</link><image><title>logo</title></image>
<item><title>Caf\xe9</title><media:title>wrong</media:title><link>/one</link><guid isPermaLink="false">id-1</guid>
  <pubDate>Mon, 02 Mar 2026 10:00:00 GMT</pubDate><description>&lt;p&gt;text&lt;/p&gt;</description></item>
<item><title>No id</title><link>https://Example.org/two#part</link></item>
<item><title>Neither</title></item></channel></rss>"""

ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><title>News</title><id>urn:feed</id>
<entry><id>urn:1</id><title type="html">One</title>
  <link rel="self" href="/self"/><link href="/one"/><link rel="edit" href="/edit"/>
  <updated>2026-03-02T10:00:00Z</updated><published>2026-03-01T10:00:00Z</published>
  <summary type="xhtml"><div xmlns="http://www.w3.org/1999/xhtml">a <b>bold</b> word</div></summary></entry></feed>"""

RDF = """<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/"
  xmlns:dc="http://purl.org/dc/elements/1.1/"><channel rdf:about="x"><title>News</title></channel>
<item rdf:about="https://example.org/1"><title>One</title><link>https://example.org/1</link><dc:date>2026-03-02</dc:date></item></rdf:RDF>"""


def test_entries_of_an_rss_feed(look, site):
    looked = look(feed(site.put("/feed", RSS.encode("latin-1"))))
    assert looked.items == {
        "id-1": {
            "url": f"{site.url}/one",
            "id": "id-1",
            "title": "Café",
            "summary": "<p>text</p>",
            "published": "Mon, 02 Mar 2026 10:00:00 GMT",
        },
        "https://example.org/two#part": {"url": "https://Example.org/two#part", "title": "No id"},
    }
    assert (looked.bad, looked.source.bad_example) == (1, "an entry without an id or an address: 'Neither'")


def test_entries_of_an_atom_feed(look, site):
    assert look(feed(site.put("/feed", ATOM))).items == {
        "urn:1": {
            "url": f"{site.url}/one",
            "id": "urn:1",
            "title": "One",
            "summary": "a bold word",
            "published": "2026-03-01T10:00:00Z",
            "updated": "2026-03-02T10:00:00Z",
        }
    }


def test_entries_of_an_rss_1_feed(look, site):
    assert look(feed(site.put("/feed", RDF))).items == {
        "https://example.org/1": {
            "url": "https://example.org/1",
            "id": "https://example.org/1",
            "title": "One",
            "published": "2026-03-02",
        }
    }


def test_an_episode_comes_with_its_file_its_length_and_its_categories(look, site):
    itunes = "http://www.itunes.com/dtds/podcast-1.0.dtd"
    items = """<item><guid>e1</guid><link>/e1</link><category>Sea</category><category domain="x">Ferries</category>
      <category>Sea</category><enclosure url="/e1.mp3" type="audio/mpeg" length="12345678"/>
      <itunes:duration>1:02:03</itunes:duration><itunes:category text="of the whole show"/></item>
    <item><guid>e2</guid><enclosure url="https://cdn.example.org/e2.m4a" length="unknown"/><enclosure type="audio/x"/>
      <itunes:duration>125</itunes:duration></item>
    <item><guid>e3</guid><itunes:duration>an hour</itunes:duration><category/></item>"""
    body = f'<rss xmlns:itunes="{itunes}"><channel>{items}</channel></rss>'
    assert look(feed(site.put("/podcast", body))).items == {
        "e1": {
            "id": "e1",
            "url": f"{site.url}/e1",
            "duration": 3723,
            "categories": ["Sea", "Ferries"],
            "enclosures": [{"url": f"{site.url}/e1.mp3", "type": "audio/mpeg", "length": 12345678}],
        },
        "e2": {"id": "e2", "duration": 125, "enclosures": [{"url": "https://cdn.example.org/e2.m4a"}]},
        "e3": {"id": "e3"},
    }


def test_an_atom_entry_has_its_files_among_its_links_and_its_categories_in_attributes(look, site):
    body = """<feed xmlns="http://www.w3.org/2005/Atom"><entry><id>urn:1</id>
      <link rel="enclosure" href="/one.ogg" type="audio/ogg" length="9"/><link href="/one"/>
      <category term="sea" label="The sea"/><category term="ferry"/></entry>
      <entry><id>urn:2</id><link rel="enclosure" href="/two.ogg"/></entry></feed>"""
    assert look(feed(site.put("/feed", body))).items == {
        "urn:1": {
            "id": "urn:1",
            "url": f"{site.url}/one",
            "categories": ["The sea", "ferry"],
            "enclosures": [{"url": f"{site.url}/one.ogg", "type": "audio/ogg", "length": 9}],
        },
        "urn:2": {"id": "urn:2", "url": f"{site.url}/two.ogg", "enclosures": [{"url": f"{site.url}/two.ogg"}]},
    }


def test_a_feed_that_has_not_changed_is_not_read_and_an_entry_that_has_gets_another_mark(look, site):
    url = site.put("/feed", ATOM, etag=True)
    first = look(feed(url)).marks
    assert look(feed(url)).kept == [""]
    site.put("/feed", ATOM.replace("One", "One, corrected"), etag=True)
    assert look(feed(url)).marks != first


def test_an_id_that_is_too_long_for_a_key_ends_in_a_hash(look, site):
    long = [f"urn:{'x' * 2000}{n}" for n in (1, 2)]
    items = "".join(f"<item><guid>{one}</guid></item>" for one in long)
    keys = list(look(feed(site.put("/feed", f"<rss><channel>{items}</channel></rss>"))).items)
    assert len(set(keys)) == 2
    assert all(len(key) <= 1024 for key in keys)


# XML ------------------------------------------------------------------------------------------------------------------

LAUGHS = '<!DOCTYPE rss [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;">]><rss><item><guid>&b;</guid></item></rss>'


@pytest.mark.fault(80)
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (LAUGHS, "document type of its own"),
        ('<!DOCTYPE rss SYSTEM "http://127.0.0.1/x.dtd"><rss/>', "document type of its own"),
        (
            '<!DOCTYPE rss [<!ENTITY x SYSTEM "file:///etc/passwd">]><rss><item><guid>&x;</guid></item></rss>',
            "document type of its own",
        ),
        ("<rss><item><guid>&x;</guid></item></rss>", "not well-formed XML: undefined entity, line 1"),
        ("<rss>" * 10_000, "nested deeper than 200 levels"),
        ("<rss><channel><item>", "not well-formed XML"),
        ("", "not well-formed XML: no element found"),
        ("nonsense " * 100_000, "not well-formed XML: syntax error"),
        ("\0" * 1000, "not well-formed XML"),
        ("<html></html>", "not a feed: its root is <html>"),
        ('<?xml version="1.0" encoding="klingon"?><rss/>', "unknown encoding|cannot be read as XML"),
        ('<?xml version="1.0" encoding="shift_jis"?><rss/>', "cannot be read as XML|not well-formed"),
        (b'<?xml version="1.0" encoding="utf-8"?><rss><item><guid>\xff</guid></item></rss>', "not well-formed XML"),
    ],
)
def test_a_document_that_is_hostile_or_nonsense_is_one_clear_line(look, site, body, said):
    with pytest.raises(SourceFailed, match=said) as raised:
        look(feed(site.put("/feed", body)))
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 300
    assert site.asked == ["/feed"]


@pytest.mark.fault(80)
def test_a_document_of_many_megabytes_takes_little_memory(look, site):
    entry = f"<item><guid>%d</guid><description>{'x' * 20_000}</description></item>"
    entries = "".join(entry % n for n in range(1500))
    body = f"<rss>{entries}<item><guid>long</guid><title>{'y' * 2_000_000}</title></item></rss>"
    url = site.put("/feed", gzip.compress(body.encode(), 1), Content_Encoding="gzip")
    source = look.open(feed(url))
    found = 0
    tracemalloc.start()
    try:
        for one in source.look({}):
            found += 1
            assert len(one.data.get("title", "")) <= 1000
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == 1501
    assert most < 15_000_000 < len(body)
