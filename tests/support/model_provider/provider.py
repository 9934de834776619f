"""A provider of models on loopback that charges: its dialects are OpenAI's, Anthropic's, Gemini's and Mistral's.

    with ModelProvider(folder) as provider:
        client = openai.OpenAI(base_url=provider.url("openai") + "/v1", api_key="none")
        client.responses.create(model="gpt-5-mini", input="chapter 3 [[fault:429 retry-after=2 first=1]]")
        provider.ledger.total()

It is a process of its own: a client or a worker that is killed does it no harm, and what it charged stays in its ledger. What
may go wrong, and how to ask for it, is in `faults`; the models and their prices are in `asked`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.support.model_provider.ledger import ProviderLedger

ROOT = Path(__file__).parents[3]
#: Where workers find it.
VARIABLE = "HOLDFAST_TEST_MODEL_PROVIDER"


class ModelProvider:
    """Lives as long as the block."""

    def __init__(self, folder: Path) -> None:
        self.ledger = ProviderLedger(folder / "model-provider.jsonl")

    def __enter__(self) -> ModelProvider:
        command = [sys.executable, "-m", "tests.support.model_provider.serving", str(self.ledger.file)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        assert port, "the provider did not start"
        self._address = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def environment(self) -> dict[str, str]:
        """What a worker must know."""
        return {VARIABLE: self._address}

    def url(self, dialect: str) -> str:
        """The address that stands for the provider's own, without a version."""
        return address_of(dialect, self._address)

    def order(self, fault: str, count: int = 1, containing: str = "") -> None:
        """Let the next requests with these words in their prompt end so: before what a prompt itself asks for."""
        raw = json.dumps({"fault": fault, "count": count, "containing": containing}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{self._address}/control", data=raw), timeout=30) as reply:
            assert reply.status == 200


def address_of(dialect: str, address: str | None = None) -> str:
    """The same, for a worker that was started with `environment`."""
    return f"{address or os.environ[VARIABLE]}/{dialect}"
