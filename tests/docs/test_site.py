"""The site has every page in its place, needs nothing from elsewhere, and can be searched without a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.web.browser import STUCK_SECONDS, chromium
from tools import links, site
from tools.pages import CONTENTS, all_pages, anchors, contents

PAGE = """
# A page

[there](other.md#what-it-s-for), [a folder](folder/), ![a picture](picture.svg), [outside](https://example.org/no.md)

```python
[not a link](nowhere.md)
```

Code such as `[a](b.md)` links to nothing.
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "folder").mkdir(parents=True)
    (tmp_path / "docs" / "page.md").write_text(PAGE)
    (tmp_path / "docs" / "other.md").write_text("# Other\n\n## What it's for\n\n## What it s for\n")
    (tmp_path / "docs" / "picture.svg").write_text("<svg/>")
    return tmp_path


def test_every_page_is_in_the_contents_once() -> None:
    listed = [page for section in contents() for _, page in section.pages()]
    assert sorted(listed) == sorted(set(all_pages()) - {CONTENTS})


def test_the_contents_begin_with_what_a_newcomer_needs() -> None:
    order = ["Start", "Guides", "Concepts", "Reference", "Reasons"]
    assert [section.title for section in contents()][: len(order)] == order


def test_no_link_of_a_page_is_broken() -> None:
    assert list(links.broken()) == []


def test_links_that_lead_somewhere_are_not_reported(root: Path) -> None:
    assert list(links.broken(root)) == []


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        ("nowhere.md", "there is no docs/nowhere.md"),
        ("other.md#what-its-worth", "docs/other.md has no heading with this anchor"),
        ("#below", "docs/page.md has no heading with this anchor"),
        ("../../outside.md", "there is no ../outside.md"),
    ],
)
def test_a_link_that_leads_nowhere_is_reported(root: Path, link: str, reason: str) -> None:
    (root / "docs" / "page.md").write_text(f"# A page\n\n[a link]({link})\n")
    assert list(links.broken(root)) == [f"docs/page.md: {link}: {reason}"]


def test_anchors_are_those_of_a_forge() -> None:
    text = "# Items × stages\n\n## `run`, again\n\n## Same\n\n## Same\n\n```sh\n# a comment\n```\n"
    assert anchors(text) == {"items--stages", "run-again", "same", "same-1"}


def test_a_link_to_a_file_that_is_not_on_the_site_becomes_text() -> None:
    text = "[the test](../../tests/x.py), [states](../states.md#every-move), [code](x.py)\n\n```\n[a](b.md)\n```\n"
    pages = {"docs/guide/a.md": "guide/a.md", "docs/states.md": "states.md"}
    assert site.relink("docs/guide/a.md", text, pages) == (
        "the test, [states](../states.md#every-move), code\n\n```\n[a](b.md)\n```\n"
    )


def test_pictures_lead_to_where_they_are_on_the_site() -> None:
    text = '![life](../pictures/life.svg) <img src="../pictures/a.png" alt=""> <source srcset="../pictures/b.png">'
    assert site.relink("docs/guide/a.md", text, {"docs/guide/a.md": "guide/a.md"}) == text
    readme = '<img src="docs/pictures/a.png"> ![b](docs/pictures/b.png)'
    assert site.relink("README.md", readme, {"README.md": "index.md"}) == (
        '<img src="pictures/a.png"> ![b](pictures/b.png)'
    )


def test_what_a_page_of_the_site_loads_from_elsewhere_is_reported(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<link rel="stylesheet" href="own.css"><script src="https://cdn.example/x.js"></script>'
        '<a href="https://example.org">out</a><a href="gone.html">in</a><a href="#no">place</a><p id="yes"><img src="gone.png">'
    )
    (tmp_path / "own.css").write_text("@font-face { src: url(//fonts.example/a.woff2) }")
    assert site.problems(tmp_path) == [
        "index.html: loads https://cdn.example/x.js",
        "index.html: there is no gone.png",
        "index.html: gone.html: there is no gone.html",
        "index.html: #no: no such place in index.html",
        "own.css: loads //fonts.example/a.woff2",
    ]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert site.build(folder) == []
    return folder / "site"


@pytest.mark.together("site")
def test_the_site_is_built_without_a_complaint_and_has_every_page(built: Path) -> None:
    pages = {site.address(page).replace(".md", ".html") for page in all_pages()}
    assert pages <= {file.relative_to(built).as_posix() for file in built.rglob("*.html")}


@pytest.mark.together("site")
def test_a_reader_finds_pages_by_their_words_without_a_server(built: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(STUCK_SECONDS * 1000)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((built / "guide" / "money.html").as_uri())
        page.keyboard.press("/")
        page.locator("input:focus").press_sequentially("heartbeat")
        page.get_by_text("Heartbeat", exact=False).nth(3).wait_for(state="attached")
        assert page.locator("input:focus").input_value() == "heartbeat"
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "about:"))] == []
