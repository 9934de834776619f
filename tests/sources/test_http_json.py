"""JSON over HTTP: page by page, from a cursor, and only what is new."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from holdfast.errors import UsageError
from holdfast.sources import SourceFailed

pytestmark = pytest.mark.req("J20")


def api(url: str, **more):
    return {"http_json": url, "allow_private": True, **more}


def parameters(path: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}


def paged(site, rows, size=2):
    """Serve rows by page number, by cursor and by address of the next page, as they are at that moment."""

    def page(request):
        given = parameters(request.path)
        begin = int(given.get("cursor") or (int(given.get("page", 1)) - 1) * size)
        there = [row for row in rows if row.get("updated_at", "") >= given.get("since", "")]
        more = begin + size < len(there)
        body = {
            "data": {"items": there[begin : begin + size]},
            "paging": {
                "cursor": str(begin + size) if more else None,
                "next": f"/api?cursor={begin + size}" if more else None,
            },
        }
        link = f'<{site.url}/other>; rel="first", </api?cursor={begin + size}>; rel="next"' if more else None
        request.answer(200, json.dumps(body).encode(), Link=link)

    return site.serve("/api", page)


def items(n):
    return [{"id": i, "title": f"book {i}"} for i in range(1, n + 1)]


WAYS = {
    "next": {"next": "paging.next"},
    "link": {"next": "@link"},
    "cursor": {"cursor": {"param": "cursor", "at": "paging.cursor"}},
    "page": {"page": {"param": "page"}},
}


def test_a_list_is_read_at_its_place(look, site):
    assert look(api(site.put("/a", '[{"id": 1}, {"id": "x"}]'))).items == {"1": {"id": 1}, "x": {"id": "x"}}
    url = site.put("/b", '{"data": {"books": [{"isbn": {"ten": "9"}, "n": 1}]}}')
    assert look(api(url, items="data.books", key="isbn.ten")).items == {"9": {"isbn": {"ten": "9"}, "n": 1}}
    assert look(api(site.put("/c", '["a", "b"]'))).items == {"a": {}, "b": {}}
    assert look(api(site.put("/d", '{"items": null}'), items="items")).items == {}


@pytest.mark.parametrize("way", WAYS)
def test_every_page_is_read_by_each_way_to_the_next(look, site, way):
    url = paged(site, items(5))
    assert list(look(api(url, items="data.items", **WAYS[way])).items) == ["1", "2", "3", "4", "5"]
    assert "at" not in look.memory


@pytest.mark.fault(59)
@pytest.mark.parametrize("way", WAYS)
def test_a_look_that_broke_off_goes_on_at_the_page_it_had_come_to(look, site, way):
    url = paged(site, items(9))
    given = api(url, items="data.items", **WAYS[way])
    stream = look.open(given).look(look.memory)
    first = [next(stream).key for _ in range(5)]
    stream.close()
    look.memory = json.loads(json.dumps(look.memory))
    asked = len(site.asked)
    assert sorted({*first, *look(given).items}, key=int) == [str(n) for n in range(1, 10)]
    assert len(site.asked) - asked < 5


def test_a_place_that_is_none_any_more_is_forgotten_and_one_that_is_busy_is_not(look, site):
    given = api(paged(site, items(5)), items="data.items", **WAYS["cursor"])
    stream = look.open(given).look(look.memory)
    assert [next(stream).key for _ in range(3)] == ["1", "2", "3"]
    stream.close()
    there = json.loads(json.dumps(look.memory))
    for status, kept in ((503, True), (429, True), (410, False)):
        look.memory = json.loads(json.dumps(there))
        site.put("/api", "", status=status)
        with pytest.raises(SourceFailed, match=str(status)):
            look(given)
        assert ("at" in look.memory) is kept
    site.put("/api", "nonsense")
    look.memory = there
    with pytest.raises(SourceFailed, match="not JSON"):
        look(given)
    assert "at" not in look.memory


@pytest.mark.fault(59)
def test_rows_that_move_between_pages_while_they_are_read_come_at_most_once_more(look, site):
    rows = items(6)
    stream = look.open(api(paged(site, rows), items="data.items", page={"param": "page"})).look({})
    seen = [next(stream).key for _ in range(2)]
    rows.insert(0, {"id": 0, "title": "new"})
    seen += [found.key for found in stream]
    assert set(seen) == {"1", "2", "3", "4", "5", "6"}


def test_only_what_is_new_since_the_last_look_is_asked_for_with_some_overlap(look, site):
    rows = [{"id": n, "updated_at": f"2026-03-02T10:{n:02}:00Z"} for n in range(10, 13)]
    url = paged(site, rows)
    given = api(
        f"{url}?x=1", items="data.items", since={"param": "since", "at": "updated_at"}, lag="5m", **WAYS["cursor"]
    )
    assert len(look(given).items) == 3
    assert "since" not in parameters(site.asked[0])
    rows += [{"id": n, "updated_at": f"2026-03-02T10:{n:02}:00Z"} for n in (6, 20)]
    second = look(given)
    assert sorted(second.items) == ["10", "11", "12", "20"]
    assert parameters(site.asked[-2]) == {"x": "1", "since": "2026-03-02T10:07:00Z"}
    assert second.source.missed
    look(given)
    assert parameters(site.asked[-1])["since"] == "2026-03-02T10:15:00Z"


def test_numbers_may_say_what_is_new_as_well(look, site):
    url = site.put("/a", '[{"id": 1, "at": 1772445600}, {"id": 2, "at": 1772445500}, {"id": 3, "at": null}]')
    given = api(url, since={"param": "after", "at": "at"}, lag="10s")
    look(given)
    look(given)
    assert site.asked[-1] == "/a?after=1772445590"


def test_a_page_that_has_not_changed_is_not_read(look, site):
    url = site.put("/a", '[{"id": 1}]', etag=True)
    assert len(look(api(url)).items) == 1
    assert look(api(url)).kept == [""]


def test_bad_rows_are_skipped_and_counted(look, site):
    looked = look(api(site.put("/a", '[{"id": 1}, {"no": 1}, null, [1], {"id": {}}, {"id": 2}]')))
    assert (list(looked.items), looked.bad) == (["1", "2"], 4)
    assert looked.source.bad_example == "item 2 of a page: nothing at 'id'"


@pytest.mark.fault(80)
@pytest.mark.parametrize(
    ("body", "more", "said"),
    [
        ("<html>", {}, "is not JSON"),
        ("", {}, "is not JSON"),
        ("[" * 100_000, {}, "nested too deeply"),
        ('{"a": []}', {}, "no list at its top.*items"),
        ('{"a": 1}', {"items": "b"}, "has nothing at 'b'"),
        ('{"a": 1}', {"items": "a"}, "has no list at 'a'"),
        ('{"items": [], "next": 5}', {"items": "items", "next": "next"}, "next page is not an address"),
        (
            '{"items": [], "next": "file:///etc/passwd"}',
            {"items": "items", "next": "next"},
            "next page is not an address: only http",
        ),
        (
            '{"items": [], "c": {}}',
            {"items": "items", "cursor": {"param": "c", "at": "c"}},
            "cursor is neither a text nor a number",
        ),
        ("[" + "1," * 60_000 + "1]", {"max_bytes": "100KB"}, "sends more than 100,000 bytes"),
    ],
)
def test_an_answer_that_is_nonsense_is_one_clear_line(look, site, body, more, said):
    with pytest.raises(SourceFailed, match=said) as raised:
        look(api(site.put("/a", body), **more))
    assert "\n" not in str(raised.value)


@pytest.mark.fault(80)
def test_pages_that_never_end_are_cut(look, site):
    with pytest.raises(SourceFailed, match="leads back to a page that was read already, after 2 pages"):
        look(api(site.put("/a", '{"items": [], "next": "/a"}'), items="items", next="next"))
    with pytest.raises(SourceFailed, match="leads back"):
        look(api(site.put("/b", '{"items": [], "c": "same"}'), items="items", cursor={"param": "c", "at": "c"}))
    with pytest.raises(SourceFailed, match="more than 7 pages; if that is right, set pages"):
        look(api(site.put("/c", '[{"id": 1}]'), page={"param": "page"}, pages=7))
    assert sum(path.startswith("/c") for path in site.asked) == 7


@pytest.mark.fault(80)
def test_the_next_page_may_not_be_on_a_machine_that_is_not_allowed_and_gets_no_secret(look, site, monkeypatch):
    monkeypatch.setattr("holdfast.runtime.allowed_addresses.is_public", lambda address: str(address) == "127.0.0.1")
    url = site.put("/a", '{"items": [], "next": "http://169.254.169.254/latest"}')
    with pytest.raises(SourceFailed, match=r"169.254.169.254"):
        look({"http_json": url, "items": "items", "next": "next", "headers": {"X-Key": "secret"}})
    assert site.headers[0]["x-key"] == "secret"


# POST -----------------------------------------------------------------------------------------------------------------


def posted(site, rows, size=2):
    """Serve rows to those who post a query, by GraphQL's conventions: the cursor of the last page is none to go on from."""

    def page(request):
        asked = json.loads(request.body)
        begin = int(asked["variables"].get("after") or 0)
        there = [row for row in rows if row.get("updated_at", "") >= asked["variables"].get("since", "")]
        info = {"endCursor": str(begin + size), "hasNextPage": begin + size < len(there)}
        body = {"data": {"search": {"nodes": there[begin : begin + size], "pageInfo": info}}}
        request.answer(200, json.dumps(body).encode())

    return site.serve("/graphql", page)


GRAPHQL = {
    "body": {"query": "query($q: String, $after: String) { search }", "variables": {"q": "ferry"}},
    "items": "data.search.nodes",
    "cursor": {
        "param": "variables.after",
        "at": "data.search.pageInfo.endCursor",
        "more": "data.search.pageInfo.hasNextPage",
    },
}


def test_a_graphql_api_is_asked_by_post_page_by_page(look, site):
    looked = look(api(posted(site, items(5)), **GRAPHQL))
    assert list(looked.items) == ["1", "2", "3", "4", "5"]
    sent = [json.loads(body) for body in site.bodies]
    assert [one["variables"] for one in sent] == [
        {"q": "ferry"},
        {"q": "ferry", "after": "2"},
        {"q": "ferry", "after": "4"},
    ]
    assert {one["query"] for one in sent} == {GRAPHQL["body"]["query"]}
    assert {one["content-type"] for one in site.headers} == {"application/json"}


def test_a_look_by_post_goes_on_where_it_broke_off_and_asks_only_for_what_is_new(look, site):
    rows = [{"id": n, "updated_at": f"2026-03-0{n}T00:00:00Z"} for n in range(1, 6)]
    given = api(posted(site, rows), **GRAPHQL, since={"param": "variables.since", "at": "updated_at"})
    stream = look.open(given).look(look.memory)
    assert [next(stream).key for _ in range(3)] == ["1", "2", "3"]
    stream.close()
    assert list(look(given).items) == ["3", "4", "5"]
    look(given)
    assert json.loads(site.bodies[-1])["variables"] == {"q": "ferry", "since": "2026-03-05T00:00:00Z"}


def test_a_single_answer_to_a_post_that_has_not_changed_is_not_read(look, site):
    url = site.put("/search", '[{"id": 1}]', etag=True)
    assert list(look(api(url, method="POST")).items) == ["1"]
    assert (look(api(url, method="POST")).kept, site.bodies) == ([""], [b"", b""])
    assert "if-none-match" not in site.headers[-1]


def test_an_error_that_graphql_answers_is_said(look, site):
    url = site.put("/graphql", '{"data": {"search": null}, "errors": [{"message": "no field\\n \'search\'"}]}')
    with pytest.raises(SourceFailed, match=r"/graphql answered with an error: no field 'search'$"):
        look(api(url, **GRAPHQL))


@pytest.mark.fault(80)
def test_a_body_is_sent_to_the_address_that_was_written_and_nowhere_else(look, site):
    url = site.redirect("/old", f"{site.url}/new", status=307)
    with pytest.raises(SourceFailed, match="/old redirects a POST, which is not sent on"):
        look(api(url, body={"token": "t0k"}))
    url = site.put("/a", '{"items": [], "next": "http://localhost:1/b"}')
    with pytest.raises(SourceFailed, match="localhost:1/b is at another origin, where no body is sent"):
        look(api(url, items="items", next="next", body={"token": "t0k"}))
    assert site.asked == ["/old", "/a"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"method": "PUT"}, "method: 'PUT' is neither GET nor POST"),
        ({"method": "GET", "body": {}}, "method: a body is sent with POST"),
        ({"body": "t0k"}, "body: give a mapping, which is sent as JSON$"),
        ({"body": {"q": 1}, "cursor": {"param": "q.after", "at": "a"}}, "cursor: in the body, 'q' is a int"),
        ({"next": "a", "cursor": {"param": "a", "at": "b"}}, "next and cursor are two ways"),
        ({"lag": "5m"}, "lag needs since"),
        ({"cursor": "a"}, "cursor: 'a': write it like"),
        ({"cursor": {"param": "a"}}, "cursor: .*write it like"),
        ({"page": {"param": "p", "start": -1}}, "page: start: -1"),
        ({"page": 5}, "page: 5: write it like"),
        ({"items": "a..b"}, "items: 'a..b' is not a path"),
        ({"pages": 0}, "pages: 0"),
        ({"headers": {"Host": "x"}}, "headers: 'Host' cannot be set"),
        ({"headers": {"X": "a\r\nY: b"}}, "headers: X: its value"),
        ({"headers": "x"}, "headers: give a mapping"),
        ({"allow_private": "yes"}, "allow_private: 'yes'"),
        ({"max_bytes": "big"}, "max_bytes: 'big'"),
        ({"request_timeout": 0}, "request_timeout: 0"),
    ],
)
def test_settings_that_are_wrong_are_refused_when_they_are_read(look, more, said):
    with pytest.raises(UsageError, match=f"^test: source 's': {said}"):
        look.open({"http_json": "https://example.org/", **more})
