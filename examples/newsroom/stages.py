"""The four handlers that holdfast.yaml names: fetch → extract → analyse → index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.newsroom import web
from examples.newsroom.reading import read_article, words_of
from examples.newsroom.tables import forget_article, save_article
from holdfast import Context, Item, Permanent, Skip


def fetch(item: Item, ctx: Context) -> dict[str, Any]:
    """The page of an address, or the file of the desk."""
    if "path" in item.data:
        return {"html": _read(Path(item.data["path"])), "etag": None}
    return web.get(str(item.data.get("url", item.key)))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise Permanent(f"{path} is no longer there; put it back, and send it on with: holdfast retry") from None


def extract(item: Item, ctx: Context) -> dict[str, Any] | Skip:
    """Title, section, date and paragraphs. What changes with every visit is left behind here."""
    article = read_article(ctx.result("fetch")["html"])
    return article if article is not None else Skip("there is no article on the page")


def analyse(item: Item, ctx: Context) -> dict[str, Any] | Skip:
    """Keywords, mood and a summary, from somebody who is paid for it, once."""
    article = ctx.result("extract")
    if article is None:
        return Skip("nothing to analyse")
    text = "\n".join(article["paragraphs"])
    key = ctx.idempotency_key("analyst")
    answer = ctx.once(
        "analyst",
        web.ask,
        article["title"],
        text,
        key,
        cost=lambda answer: answer["cost"],
        estimate="0.01",
        resource="analyst",
    )
    return {name: answer[name] for name in ("keywords", "mood", "summary")}


def index(item: Item, ctx: Context) -> dict[str, Any]:
    """The article and its words in our own tables, in the transaction that completes the stage."""
    article, found = ctx.result("extract"), ctx.result("analyse")
    if article is None or found is None:
        ctx.effect(forget_article, item.key)
        return {"words": 0}
    row = {
        "title": article["title"],
        "section": article["section"],
        "published": article["published"],
        "summary": found["summary"],
        "mood": found["mood"],
        "keywords": " ".join(found["keywords"]),
        "found_by": " ".join(item.data.get("sources", ())),
    }
    words = words_of(" ".join([article["title"], *article["paragraphs"]]))
    ctx.effect(save_article, item.key, row, dict(words))
    return {"words": words.total()}
