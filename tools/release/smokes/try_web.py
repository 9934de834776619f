"""The dashboard is served, with its templates, its style and its script."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from typing import Any
from urllib.parse import urljoin

from holdfast import Pipeline

books = Pipeline("books", store="sqlite:///web.db")


@books.stage()
def read(item: Any, ctx: Any) -> None:
    pass


books.add(["walden"])
books.run()
command = ["environment/bin/holdfast", "ui", "--port", "0", "--no-token", "--store", "sqlite:///web.db"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
    try:
        assert served.stdout is not None
        address = served.stdout.readline().strip()
        with urllib.request.urlopen(address) as answer:
            page = answer.read().decode()
        assert "books" in page, page
        assets = re.findall(r'(?:href|src)="([^"]*/static/[^"]*|static/[^"]*)"', page)
        assert len(assets) >= 3, page
        for asset in assets:
            with urllib.request.urlopen(urljoin(address, asset)) as answer:
                assert answer.read(), asset
    finally:
        served.terminate()
print("web: works")
