from holdfast.engine.register import layout, register
from holdfast.model.stage import PipelineSpec, StageSpec


def handler(item, ctx): ...


def test_registering_twice_changes_nothing(store):
    spec = PipelineSpec.build("p", [StageSpec("a", handler), StageSpec("b", handler, after=("a",))])
    first = store.write(lambda tx: register(tx, spec), exclusive=True)
    again = store.write(lambda tx: register(tx, spec), exclusive=True)
    assert first.added == ["a", "b"]
    assert not any(again)
    assert [row.name for row in store.read(layout).of_pipeline("p")] == ["a", "b"]
