"""Items are added in the transaction of an async SQLAlchemy session."""

from __future__ import annotations

import asyncio

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast import Pipeline

books = Pipeline("books", store="sqlite:///asyncio.db")


@books.stage()
async def read(item: object, ctx: object) -> None:
    await asyncio.sleep(0)


async def main() -> None:
    await books.add_async(["emma"])
    engine = create_async_engine("sqlite+aiosqlite:///asyncio.db")
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE orders (name TEXT)"))
    async with engine.begin() as connection:
        await connection.execute(text("INSERT INTO orders VALUES ('walden')"))
        added = await books.add_async(["walden"], connection=connection)
    assert added.new == 1, added
    await engine.dispose()
    summary = await books.run_async()
    assert summary.failed == 0, summary


asyncio.run(main())
print("asyncio: works")
