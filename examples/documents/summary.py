"""What there is at the end, counted from four places that know nothing of each other: holdfast's stages, our own tables,
the model's ledger, and the event log."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import sqlalchemy as sa

from examples.documents.paid_model import paid, read_ledger
from examples.documents.pipeline import keys
from examples.documents.stages import Where, where_is
from examples.documents.tables import schema_of, tables, violations
from holdfast import Holdfast, store_engine


@dataclass
class Summary:
    documents: list[Where]
    chunks: Counter[str]
    connections: int
    violations: int
    #: How often each document was charged, by the model's ledger, and what that came to.
    paid: Counter[str]
    spent: Decimal
    #: What holdfast counts, and how many calls it says to be in doubt.
    recorded: Decimal
    in_doubt: Counter[str]
    refused: Counter[int]
    wrong: list[str] = field(default_factory=list)

    @property
    def ready(self) -> list[Where]:
        return [one for one in self.documents if one.ready]

    @property
    def failed(self) -> list[Where]:
        return [one for one in self.documents if one.stage == "failed"]

    @property
    def twice(self) -> int:
        """Calls that were charged although the document was charged before."""
        return sum(n - 1 for n in self.paid.values())


def summarise(app: Holdfast, url: str, ledger: Path) -> Summary:
    own = tables(schema_of(url))
    with store_engine(url).connect() as connection:
        per_document = sa.select(own.chunks.c.document, sa.func.count()).group_by(own.chunks.c.document)
        chunks = Counter(dict(map(tuple, connection.execute(per_document))))
        links = connection.execute(sa.select(sa.func.count()).select_from(own.connections)).scalar_one()
    calls = read_ledger(ledger)
    doubts = app.events(event="in_doubt", pipeline="documents", most=100_000)
    return Summary(
        documents=[where_is(app, key) for key in keys(app)],
        chunks=chunks,
        connections=links,
        violations=len(violations(url)),
        paid=paid(calls),
        spent=sum((Decimal(call["charged"]) for call in calls), Decimal(0)),
        recorded=Decimal(sum(row["costs"] for row in app.costs(["pipeline"]))) / 1_000_000,
        in_doubt=Counter(event["item"] for event in doubts),
        refused=Counter(call["status"] for call in calls if call["status"] != 200),
        wrong=app.check(),
    )
