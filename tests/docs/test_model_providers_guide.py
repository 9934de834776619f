"""The programs of the page on model providers work exactly as they are printed, with the providers' own packages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import ROUND_CEILING, Decimal
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.docs.test_guides import ROOT, blocks
from tests.support.model_provider.provider import ModelProvider

pytestmark = pytest.mark.req("P11", "P12")

MILLIONTH = Decimal("0.000001")
PROGRAMS = [block for block in blocks(ROOT / "docs/guide/model-providers.md", "python") if "__main__" in block]
PARSING = next(block for block in blocks(ROOT / "docs/guide/model-providers.md", "python") if "parse=Answer" in block)


SPEAKING = next(block for block in blocks(ROOT / "docs/guide/model-providers.md", "python") if "def speak" in block)


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelProvider]:
    with ModelProvider(tmp_path_factory.mktemp("provider")) as provider:
        yield provider


def run(program: str, folder: Path, provider: ModelProvider) -> Holdfast:
    """As a file, with the variables that the packages read."""
    (folder / "texts.py").write_text(program, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    url = f"sqlite:///{folder / 'texts.db'}"
    environment = {
        **kept,
        "PYTHONPATH": str(ROOT),
        "HOLDFAST_URL": url,
        "OPENAI_BASE_URL": f"{provider.url('openai')}/v1",
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_BASE_URL": provider.url("anthropic"),
        "ANTHROPIC_API_KEY": "none",
        "GOOGLE_GEMINI_BASE_URL": provider.url("gemini"),
        "GEMINI_API_KEY": "none",
    }
    ran = subprocess.run(
        [sys.executable, "texts.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    assert "not heard" not in ran.stderr, "the client is prepared"
    return Holdfast(url)


@pytest.mark.parametrize(("name", "program"), list(zip(("openai", "anthropic", "gemini"), PROGRAMS, strict=True)))
def test_each_program_on_the_page_pays_once_for_each_text(
    tmp_path: Path, provider: ModelProvider, name: str, program: str
) -> None:
    before = len(provider.ledger.entries())
    for _ in range(2):  # the second time there is nothing to do
        with run(program, tmp_path, provider) as app:
            assert [(item.key, app.show(item.key).status) for item in app.items()] == [("one", "done"), ("two", "done")]
            total = app.costs().total
    entries = provider.ledger.entries(after=before)
    assert {entry.dialect for entry in entries} == {name}
    assert all(entry.charged for entry in entries)
    prompts = " ".join(entry.prompt for entry in entries)
    assert [prompts.count(text) for text in ("A long text.", "Another one.")] == [1, 1]
    if name == "gemini":
        # One call for both, at the price that the program states.
        assert (len(entries), total.costs) == (1, Decimal("0.0001"))
    else:
        # Each call is rounded up to a millionth.
        assert total.costs == sum(entry.amount.quantize(MILLIONTH, ROUND_CEILING) for entry in entries)
    assert total.in_doubt == 0


def test_the_answer_of_the_short_program_is_parsed(tmp_path: Path, provider: ModelProvider) -> None:
    """It stands for the handler of the first program."""
    with run(with_handler(PARSING, "summarise"), tmp_path, provider) as app:
        assert [app.show(key).stages[0].result for key in ("one", "two")] == [{"by": "gpt-5-mini"}] * 2


def test_speech_is_bought_as_printed(tmp_path: Path, provider: ModelProvider) -> None:
    with run(with_handler(SPEAKING, "speak"), tmp_path, provider) as app:
        for key in ("one", "two"):
            result = app.show(key).stages[0].result
            assert len(app.blob(result["speech"]).read()) == result["bytes"] > 100
        assert app.costs().total.costs == Decimal("0.03")


def with_handler(block: str, name: str) -> str:
    """The first program, with another handler in place of its own."""
    head, body = PROGRAMS[0].split("@texts.stage", 1)
    stage, rest = body.split("\n", 1)
    main = rest[rest.index("if __name__") :]
    imports, handler = block.split(f"def {name}", 1)
    return f"{head}{imports}@texts.stage{stage}\ndef {name}{handler}\n\n{main}"
