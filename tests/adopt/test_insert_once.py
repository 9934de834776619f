"""Insert once: one row, whoever races for it, and no error for having come second."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from holdfast.adopt import TableMapping, claim, complete, insert_once
from holdfast.errors import DefinitionError, UsageError
from tests.support.together import at_once


class Base(DeclarativeBase):
    pass


class World(Base):
    __tablename__ = "worlds"
    id: Mapped[int] = mapped_column(primary_key=True)


class Entry(Base):
    __tablename__ = "entries"
    id: Mapped[int] = mapped_column(primary_key=True)
    slug: Mapped[str] = mapped_column("the_slug")
    version: Mapped[int] = mapped_column(default=1)
    text: Mapped[str] = mapped_column(default="")
    serial: Mapped[int | None] = mapped_column(unique=True)
    world: Mapped[int | None] = mapped_column(ForeignKey("worlds.id"))
    __table_args__ = (UniqueConstraint("the_slug", "version", name="one_entry"), Index("by_text", "text"))


class Lore(Base):
    __tablename__ = "lore"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="queued")
    slug: Mapped[str]
    who: Mapped[str | None]
    entry: Mapped[int | None] = mapped_column(ForeignKey("entries.id"))


ON = ("slug", "version")


@pytest.fixture(autouse=True)
def tables(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", lambda conn, _: conn.execute("PRAGMA foreign_keys = ON"))
    Base.metadata.create_all(engine)


def entries(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(sa.select(Entry.__table__).order_by(Entry.id)))


@pytest.mark.req("F4")
def test_the_first_makes_the_row_and_the_second_is_given_the_same(engine: Engine):
    first, new = insert_once(engine, Entry, {"slug": "sea", "version": 1, "text": "first"}, unique_on=ON)
    again, old = insert_once(engine, Entry, {"slug": "sea", "version": 1, "text": "second"}, unique_on=ON)
    assert (new, old) == (True, False)
    assert first == again and first.text == "first"
    assert len(entries(engine)) == 1


@pytest.mark.req("F4")
def test_with_a_session_the_row_is_an_object_of_it(engine: Engine):
    with Session(engine) as session:
        made, new = insert_once(session, Entry, {"slug": "sea"}, unique_on=ON)
        again, old = insert_once(session, Entry, {"slug": "sea", "text": "x"}, unique_on="one_entry")
        assert isinstance(made, Entry) and again is made and (new, old) == (True, False)
        made.text = "edited"
        session.commit()
    assert [(row.the_slug, row.version, row.text) for row in entries(engine)] == [("sea", 1, "edited")]


@pytest.mark.req("F4")
def test_eight_that_race_make_one_row_and_no_error(engine: Engine):
    for number in range(5):

        def insert(number: int = number) -> tuple[int, bool]:
            row, created = insert_once(engine, Entry, {"slug": f"s{number}", "version": 1}, unique_on=ON)
            return row.id, created

        found = at_once(*[insert] * 8)
        assert len({key for key, _ in found}) == 1
        assert [created for _, created in found].count(True) == 1


@pytest.mark.req("F4")
@pytest.mark.parametrize("place", ["connection", "session"])
def test_a_conflict_leaves_the_callers_transaction_as_it_was(engine: Engine, place: str):
    insert_once(engine, Entry, {"slug": "sea", "version": 1}, unique_on=ON)
    with engine.begin() if place == "connection" else sessionmaker(engine).begin() as at:
        at.execute(sa.insert(World.__table__).values(id=7))
        _, created = insert_once(at, Entry, {"slug": "sea", "version": 1}, unique_on=ON)
        assert not created
        _, created = insert_once(at, Entry, {"slug": "sea", "version": 2}, unique_on=ON)
        assert created
    with engine.connect() as connection:
        assert connection.execute(sa.select(World.id)).scalars().all() == [7]
    assert len(entries(engine)) == 2


@pytest.mark.req("F4")
def test_what_was_inserted_goes_when_the_callers_transaction_is_undone(engine: Engine):
    with engine.connect() as connection:
        insert_once(connection, Entry, {"slug": "sea"}, unique_on=ON)
        connection.rollback()
    assert entries(engine) == []


@pytest.mark.req("F4")
@pytest.mark.parametrize(
    "values", [{"serial": 5}, {"world": 99}, {"text": None}], ids=["unique", "foreign key", "not null"]
)
def test_another_constraint_is_always_told_and_the_transaction_can_go_on(engine: Engine, values: dict[str, Any]):
    insert_once(engine, Entry, {"slug": "sea", "version": 1, "serial": 5}, unique_on=ON)
    with engine.begin() as connection:
        connection.execute(sa.insert(World.__table__).values(id=1))
        with pytest.raises(sa.exc.IntegrityError):
            insert_once(connection, Entry, {"slug": "sky", "version": 1, **values}, unique_on=ON)
        connection.execute(sa.insert(World.__table__).values(id=2))
    with engine.connect() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(World)).scalar() == 2
    assert len(entries(engine)) == 1


@pytest.mark.parametrize(
    ("unique_on", "values", "error", "said"),
    [
        (("slug",), {}, DefinitionError, "no unique constraint on exactly"),
        (("nowhere",), {}, DefinitionError, "no column 'nowhere'"),
        ("by_text", {}, UsageError, "'by_text' is not unique"),
        ((), {}, UsageError, "names no column"),
        (("serial",), {}, UsageError, "give a value for 'serial'"),
        (("serial",), {"serial": None}, UsageError, "give a value for 'serial'"),
    ],
)
def test_a_name_that_cannot_make_it_unique_is_refused(
    engine: Engine, unique_on: Any, values: dict[str, Any], error: type[Exception], said: str
):
    with pytest.raises(error, match=said):
        insert_once(engine, Entry, {"slug": "sea", **values}, unique_on=unique_on)
    assert entries(engine) == []


@pytest.mark.req("F4")
def test_without_on_conflict_the_database_is_asked_which_constraint_it_was(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    """How it is done on MySQL and others."""
    module = import_module("holdfast.adopt.rows.insert_once")
    monkeypatch.setattr(module, "_ON_CONFLICT", {})
    monkeypatch.setattr(module, "_savepoint", lambda connection: connection.begin_nested())
    first, new = insert_once(engine, Entry, {"slug": "sea", "serial": 1}, unique_on=ON)
    again, old = insert_once(engine, Entry, {"slug": "sea", "serial": 2}, unique_on=ON)
    assert (first.id, new, old) == (again.id, True, False)
    with pytest.raises(sa.exc.IntegrityError):
        insert_once(engine, Entry, {"slug": "sky", "serial": 1}, unique_on=ON)


@pytest.mark.req("F4")
def test_lore_is_fulfilled_once_by_however_many_run_at_once(engine: Engine):
    """Claim the requirement, insert the entry once, link it: one entry, linked, and nobody gets an error."""
    mapping = TableMapping(Lore, holder="who")
    with sessionmaker(engine).begin() as session:
        session.add_all([Lore(slug="sea"), Lore(slug="sky"), Lore(slug="sea")])

    def fulfil() -> int:
        done = 0
        while rows := claim(engine, mapping, 1):
            with sessionmaker(engine).begin() as session:
                entry, _ = insert_once(session, Entry, {"slug": rows[0].row["slug"]}, unique_on=ON)
                complete(session, rows[0], values={"entry": entry.id})
            done += 1
        return done

    assert sum(at_once(*[fulfil] * 4)) == 3
    with engine.connect() as connection:
        linked = connection.execute(
            sa.select(Lore.status, Lore.entry, Entry.slug).join(Entry, Entry.id == Lore.entry)
        ).all()
    assert len(entries(engine)) == 2 and len(linked) == 3
    assert {row.status for row in linked} == {"completed"}
