"""The four handlers that holdfast.yaml names: fetch → extract → analyse → index."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from examples.newsroom import web
from examples.newsroom.reading import Article, read_article, words_of
from examples.newsroom.tables import forget_article, save_article
from holdfast import Context, Item, Permanent, Skip


@dataclass
class Found:
    """What the handlers need of what the sources know: the address if it is not the key, or the file of the desk."""

    url: str | None = None
    path: Path | None = None
    sources: list[str] = field(default_factory=list)


@dataclass
class Analysis:
    keywords: list[str]
    mood: float
    summary: str


def fetch(item: Item[Found], ctx: Context) -> str:
    """The page of an address, or the file of the desk."""
    path = item.data.path
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path else web.get(item.data.url or item.key)
    except FileNotFoundError:
        raise Permanent(f"{path} is no longer there; put it back, and send it on with: holdfast retry") from None


def extract(item: Item, ctx: Context) -> Article | Skip:
    """Title, section, date and paragraphs. What changes with every visit is left behind here."""
    return read_article(ctx.result("fetch")) or Skip("there is no article on the page")


def analyse(item: Item, ctx: Context) -> Analysis | Skip:
    """Keywords, mood and a summary, from somebody who is paid for it, once."""
    article: Article | None = ctx.result("extract")
    if article is None:
        return Skip("nothing to analyse")
    paid, key = ctx.options(parse=Analysis), ctx.idempotency_key("analyst")
    found: Analysis = paid.call("analyst", web.ask, article, key, model="analyst")
    return found


def index(item: Item[Found], ctx: Context) -> dict[str, int]:
    """The article and its words in our own tables, in the transaction that completes the stage."""
    article: Article | None = ctx.result("extract")
    found: Analysis | None = ctx.result("analyse")
    if article is None or found is None:
        ctx.effect(forget_article, item.key)
        return {"words": 0}
    row = {**asdict(article), **asdict(found)}
    row |= {"keywords": " ".join(found.keywords), "found_by": " ".join(item.data.sources)}
    words = words_of(" ".join([article.title, *row.pop("paragraphs")]))
    ctx.effect(save_article, item.key, row, dict(words))
    return {"words": words.total()}
