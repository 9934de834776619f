"""The two pipelines. A document: extract (paid) → save_markdown → chunk → embed; then it is ready. Its connections are
an item of a pipeline of their own, added with the last stage, once while one waits or runs.

    app = Documents(Settings.read())
    with app.open() as holdfast:
        app.add(holdfast, Path("books"))
        holdfast.run(app.settings.worker())
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from examples.documents import model, tables
from examples.documents.chunking import digest, split
from examples.documents.embedding import as_text, embed
from examples.documents.neighbours import Chunks, connections
from examples.documents.reading import FORMATS, Unreadable, read
from examples.documents.settings import TIMEOUTS, Settings
from holdfast import Added, Backoff, Blob, Context, Holdfast, Item, Permanent, Pipeline, seconds, store_engine

T = TypeVar("T")

DOCUMENTS, CONNECTIONS = "documents", "connections"
#: How many chunks are embedded between two looks at the clock.
EMBEDDED_AT_ONCE = 64


@dataclass
class Book:
    """The data of an item; without a path the file lies among the other books, under the item's key."""

    path: Path | None = None


@dataclass
class Extracted:
    title: str
    format: str
    pages: int
    #: A text is what the earlier program had kept.
    markdown: Blob | str


class Documents:
    """The application: its settings, its pipelines, and the handlers of their stages."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.model = model.Client(settings)
        pause = seconds(settings.first_pause, what="DOCUMENTS_FIRST_PAUSE")
        limits = {"concurrency": settings.calls_at_once, "budget": settings.budget, "cool": pause}
        # Real models have prices of their own, by tokens.
        prices = {"local-*": {"per_call": settings.price}}
        self.documents = Pipeline(
            DOCUMENTS, data=Book, store=settings.store, resources={"model": limits}, prices=prices
        )
        self.connections = Pipeline(CONNECTIONS, store=settings.store)
        backoff = Backoff(first_seconds=pause, most_seconds=60)
        tries: dict[str, Any] = {"max_attempts": settings.attempts, "backoff": backoff}
        stage, limit = self.documents.stage, TIMEOUTS
        paid: dict[str, Any] = {"resource": "model", "estimate": settings.price}
        self.extract = stage(name="extract", timeout=limit["extract"], **paid, **tries)(self._extract)
        stage(name="save_markdown", after="extract", timeout=limit["save_markdown"], **tries)(self._save_markdown)
        stage(name="chunk", after="save_markdown", timeout=limit["chunk"], **tries)(self._chunk)
        stage(name="embed", after="chunk", timeout=limit["embed"], **tries)(self._embed)
        self.connections.stage(name="connect", timeout=limit["connect"], **tries)(self._connect)

    def open(self, **given: Any) -> Holdfast:
        """The store, with holdfast's tables and ours."""
        specs = [self.documents.spec, self.connections.spec]
        app = Holdfast(self.settings.store, specs, resources=self.documents.resources, **given)
        app.register()
        tables.metadata.create_all(store_engine(self.settings.store))
        return app

    def add(self, app: Holdfast, folder: Path) -> Added:
        """Add every document under a folder; its key is its path there."""
        found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in FORMATS and path.is_file())
        return app.add(DOCUMENTS, [(path.relative_to(folder).as_posix(), Book(path.resolve())) for path in found])

    # Stages -----------------------------------------------------------------------------------------------------------

    def _extract(self, item: Item[Book], ctx: Context) -> Extracted:
        path = item.data.path or self.settings.books / item.key
        try:
            rough = read(path, lambda done, total: ctx.progress(done, total, f"reading part {done} of {total}"))
        except Unreadable as error:
            raise Permanent(str(error)) from error
        total = len(rough.pages)
        pages: list[str] = []
        size = self.settings.pages_per_call or total
        for number, some in enumerate(_parts(rough.pages, size)):
            first = number * size + 1
            name = "extract" if size >= total else f"extract pages {first}-{first + len(some) - 1}"
            paid = ctx.options(estimate=self.settings.price, parse=model.pages_of)
            key = ctx.idempotency_key(name)
            pages += paid.call(name, self.model.extract, some, first, total, item.key, key, ctx.progress)
        kept = ctx.keep(model.joined(pages).encode(), name=f"{path.stem}.md", type="text/markdown")
        return Extracted(rough.title, rough.format, total, kept)

    def _save_markdown(self, item: Item[Book], ctx: Context) -> dict[str, Any]:
        document = ctx.result(self.extract)
        text = _text(ctx, document.markdown)
        ctx.effect(tables.save_markdown, item.key, {**vars(document), "markdown": text})
        return {"characters": len(text), "digest": digest(text)}

    def _chunk(self, item: Item[Book], ctx: Context) -> dict[str, Any]:
        texts = split(_text(ctx, ctx.result(self.extract).markdown))
        if not texts:
            raise Permanent(f"{item.key}: nothing was left of it to cut into chunks")
        decision = tables.decision_on(self.settings.store, item.key, texts)
        _tell(ctx, decision.verb, decision.why, kept=len(decision.kept), gone=decision.gone, new=decision.new)
        ctx.effect(tables.save_chunks, item.key, texts)
        return {"chunks": len(texts), "digest": digest("\0".join(texts))}

    def _embed(self, item: Item[Book], ctx: Context) -> dict[str, Any]:
        rows = tables.texts_of(self.settings.store, item.key)
        if ctx.attempt > 1:
            why = f"the stage that made them is done, and attempt {ctx.attempt} goes on after it"
            _tell(ctx, "kept", why, kept=len(rows), gone=0, new=0)
        vectors: list[tuple[str, str, str]] = []
        for some in _parts(rows, EMBEDDED_AT_ONCE):
            found = embed([text for _, text in some])
            vectors += [(id_, digest(text), as_text(vector)) for (id_, text), vector in zip(some, found, strict=True)]
            ctx.progress(len(vectors), len(rows), f"chunk {len(vectors)} of {len(rows)}")
        ctx.effect(tables.save_vectors, item.key, vectors)
        ctx.submit(CONNECTIONS, item.key, when_exists="rerun")
        return {"vectors": len(vectors), "digest": digest("".join(vector for _, _, vector in vectors))}

    def _connect(self, item: Item, ctx: Context) -> dict[str, int]:
        revisions, chunks = tables.embedded(self.settings.store)
        ctx.progress(0, len(chunks), f"{len(chunks)} documents")
        own: Chunks | None = chunks.get(item.key)
        pairs = [] if own is None else connections(item.key, own, chunks)
        ctx.effect(tables.save_connections, item.key, revisions, pairs)
        return {"connections": len(pairs), "documents": len(chunks)}


def _tell(ctx: Context, verb: str, why: str, **numbers: int) -> None:
    """What was decided about the chunks of a document, for the log and as an event: `user.chunks_kept`, for instance."""
    ctx.log.info("chunks %s: %s", verb, why)
    ctx.event(f"user.chunks_{verb}", why=why, **numbers)


def _text(ctx: Context, markdown: Blob | str) -> str:
    return markdown if isinstance(markdown, str) else ctx.blob(markdown).read().decode()


def _parts(whole: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (whole[at : at + size] for at in range(0, len(whole), size))


def keys(app: Holdfast) -> list[str]:
    """The keys of all documents, in the order they were added."""
    return [row.key for row in app.items(pipeline=DOCUMENTS, most=1_000_000)]
