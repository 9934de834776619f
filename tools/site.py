"""Builds the documentation site from the Markdown of the repository; `make docs`.

Pages are copied into build/pages, under the addresses that they have on the site, with their links rewritten; Zensical makes
build/site of them. Whatever it warns about ends the build, and so does a page that would load anything from elsewhere.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

from tools import links
from tools.pages import CONTENTS, ROOT, Section, contents, resolve
from tools.reference.api import MODULES, names_of

BUILD = ROOT / "build"
CONFIG = ROOT / "docs" / "site" / "zensical.toml"

#: Tags that make a browser fetch something, and the attribute that says what.
FETCHING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "srcset"}

_LINK = re.compile(r"(?<!\\)(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_ATTRIBUTE = re.compile(r"\b(src|srcset)=\"([^\":]+)\"")
_FENCE = re.compile(r"(^(?:`{3,}|~{3,}).*?^(?:`{3,}|~{3,})[ \t]*$)", re.DOTALL | re.MULTILINE)


def address(page: str) -> str:
    """Where a page of the repository is on the site."""
    if page == "README.md":
        return "index.md"
    if page == CONTENTS:
        return "contents.md"
    name = page.removeprefix("docs/").removesuffix("/README.md").lower()
    return name if name.endswith(".md") else f"{name}.md"


def assemble(folder: Path) -> list[Section]:
    """Copy every page of the contents, and what the pages show, into a folder."""
    sections = contents()
    pages = {page: address(page) for section in sections for _, page in section.pages()} | {CONTENTS: address(CONTENTS)}
    for page, place in pages.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(relink(page, (ROOT / page).read_text(encoding="utf-8"), pages), encoding="utf-8")
    for picture in (ROOT / "docs").rglob("*.*"):
        if picture.suffix in (".svg", ".png"):
            target = folder / picture.relative_to(ROOT / "docs")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture, target)
    shutil.copy(CONFIG.parent / "iframe-worker.js", folder)
    api = Section("API in full", [*_api(folder)])
    [reference] = [one for one in sections if one.title == "Reference"]
    reference.entries.append(api)
    return sections


def _api(folder: Path) -> Iterator[tuple[str, str]]:
    """A page per public module with all docstrings, which only the site has."""
    for module in MODULES:
        page = f"reference/api/{module}.md"
        directives = "\n\n".join(f"::: {module}.{name}" for name in names_of(import_module(module)))
        (folder / page).parent.mkdir(exist_ok=True)
        (folder / page).write_text(
            f"# {module}\n\n{MODULES[module].replace('](', '](../')}\n\n{directives}\n", encoding="utf-8"
        )
        yield module, page


def relink(page: str, text: str, pages: dict[str, str]) -> str:
    """The text of a page with links for the site. What is in the repository and not on the site is named without a link."""

    def on_site(link: re.Match[str]) -> str:
        picture, words, target = link.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            return link[0]
        found = resolve(page, path)
        if picture:
            return f"![{words}]({_from(pages[page], found.removeprefix('docs/'))})"
        if found not in pages:
            return words
        return f"[{words}]({_from(pages[page], pages[found])}{'#' if anchor else ''}{anchor})"

    def shown(attribute: re.Match[str]) -> str:
        return f'{attribute[1]}="{_from(pages[page], resolve(page, attribute[2]).removeprefix("docs/"))}"'

    parts = _FENCE.split(text)
    return "".join(
        part if part.startswith(("```", "~~~")) else _ATTRIBUTE.sub(shown, _LINK.sub(on_site, part)) for part in parts
    )


def _from(page: str, target: str) -> str:
    """The way from one page of the site to another."""
    return f"{'../' * page.count('/')}{target}"


def navigation(sections: list[Section]) -> str:
    """The contents as the builder's configuration has them."""

    def entries(section: Section) -> str:
        listed = [
            f"{{ {json.dumps(one.title)} = [{entries(one)}] }}"
            if isinstance(one, Section)
            else f"{{ {json.dumps(one[0])} = {json.dumps(address(one[1]))} }}"
            for one in section.entries
        ]
        return ", ".join(listed)

    return "".join(f"\n[[project.nav]]\n{json.dumps(one.title)} = [{entries(one)}]\n" for one in sections)


class _Page(HTMLParser):
    """What a page of the site fetches and links to, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.linked: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.linked.append(given["href"])
        if given.get(FETCHING.get(tag, "")) and given.get("rel") not in ("canonical", "prev", "next"):
            self.fetched.append(given[FETCHING[tag]])


def problems(site: Path) -> list[str]:
    """What a reader of the built site would miss: broken links, and what a browser would load from elsewhere."""
    pages = {file: _Page(file.read_text(encoding="utf-8")) for file in sorted(site.rglob("*.html"))}
    found = []
    for file, page in pages.items():
        name = file.relative_to(site)
        found += [f"{name}: loads {one}" for one in page.fetched if "//" in one]
        local = [
            unquote(one) for one in page.fetched if not re.match(r"[a-z]+:|.*//|/", one) and name.name != "404.html"
        ]
        found += [f"{name}: there is no {one}" for one in local if not (file.parent / one).is_file()]
        for link in page.linked:
            path, _, anchor = unquote(link).partition("#")
            # The page of an unknown address does not know where it is shown.
            if re.match(r"[a-z]+:|//", link) or name.name == "404.html":
                continue
            target = (file.parent / path).resolve() if path else file
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{name}: {link}: there is no {target.name}")
            elif anchor and target in pages and anchor not in pages[target].places:
                found.append(f"{name}: {link}: no such place in {target.name}")
    for sheet in site.rglob("*.css"):
        loaded = re.findall(r"url\(['\"]?((?:https?:)?//[^)]*)|@import[^;]*//", sheet.read_text(encoding="utf-8"))
        found += [f"{sheet.relative_to(site)}: loads {one}" for one in loaded]
    return found


def build(folder: Path = BUILD) -> list[str]:
    """Build the site in a folder; return what is wrong with it."""
    for name in ("pages", "site"):
        shutil.rmtree(folder / name, ignore_errors=True)
    sections = assemble(folder / "pages")
    config = folder / "zensical.toml"
    settings = CONFIG.read_text(encoding="utf-8").replace("{root}", str(ROOT))
    config.write_text(settings + navigation(sections), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(config)]
    ended = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode:
        return [*ended.stdout.splitlines(), f"zensical ended with {ended.returncode}"]
    return problems(folder / "site")


def main() -> int:
    wrong = [*links.broken()] or build()
    for problem in wrong:
        print(problem, file=sys.stderr)
    if wrong:
        return 1
    print(
        f"{len(list((BUILD / 'site').rglob('*.html')))} pages; open {(BUILD / 'site' / 'index.html').relative_to(ROOT)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
