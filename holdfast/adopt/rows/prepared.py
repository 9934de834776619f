"""Statements that are compiled once: building one takes longer than many databases take to run it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Dialect, Update


class Prepared:
    """A compiled UPDATE. Its parameters begin with `hf_`."""

    def __init__(self, statement: Update, dialect: Dialect) -> None:
        self._statement = statement
        compiled: Any = statement.compile(dialect=dialect)
        self.text = str(compiled)
        self._order = getattr(compiled, "positiontup", None)
        #: Parameters that are named after the user's columns, with the characters that a driver cannot read replaced.
        self._escaped: dict[str, str] = dict(compiled.escaped_bind_names or {})
        binds: list[tuple[str, Any]] = [(name, bind) for bind, name in compiled.bind_names.items()]
        self._fixed = {name: bind.value for name, bind in binds if not (bind.required or bind.callable)}
        self._computed = [(name, bind.callable) for name, bind in binds if bind.callable]
        self._processors = {
            name: found for name, bind in binds if (found := bind.type.dialect_impl(dialect).bind_processor(dialect))
        }
        #: The text can be sent as it is: no list to expand, and no parameter of the user's without a value.
        self.is_whole = not (compiled.post_compile_params or compiled.literal_execute_params) and all(
            name.startswith("hf_") for name, bind in binds if bind.required
        )

    def given(self, values: dict[str, Any]) -> Any:
        """All values as the driver expects them: by name, or by position."""
        whole = {**self._fixed, **values}
        for name, compute in self._computed:
            whole[name] = compute()
        for name, process in self._processors.items():
            whole[name] = process(whole[name])
        if self._order is not None:
            return tuple(map(whole.__getitem__, self._order))
        for name, escaped in self._escaped.items():
            whole[escaped] = whole.pop(name)
        return whole

    def run(self, connection: Connection, values: dict[str, Any]) -> int:
        """Run the statement; return how many rows it changed."""
        if "schema_translate_map" in connection.get_execution_options():
            return connection.execute(self._statement, values).rowcount
        return connection.exec_driver_sql(self.text, self.given(values)).rowcount
