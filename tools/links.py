"""Checks the links of every Markdown page, as a forge follows them: the file is there, and so is the heading.

`python -m tools.links` lists what is wrong and fails; `make docs` begins with it. Addresses outside are not opened.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tools.pages import ROOT, all_pages, anchors, links, resolve


def broken(root: Path = ROOT) -> Iterator[str]:
    """Every link that leads nowhere, with its page and the reason."""
    texts = {page: (root / page).read_text(encoding="utf-8") for page in all_pages(root)}
    for page, text in texts.items():
        for link in links(text):
            path, _, anchor = link.partition("#")
            if "://" in link or link.startswith("mailto:"):
                continue
            target = resolve(page, path) if path else page
            if not (root / target).exists() or target.startswith(".."):
                yield f"{page}: {link}: there is no {target}"
            elif anchor and anchor not in anchors(texts.get(target, "")):
                yield f"{page}: {link}: {target} has no heading with this anchor"


def main() -> int:
    problems = list(broken())
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"links: all lead somewhere, on {len(all_pages())} pages")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
