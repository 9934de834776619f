"""The pictures of the documentation: small, there where pages show them, described, and made by a command."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.web.browser import chromium
from tools.small_png import small_png

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
SHOWN_ON = (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))


def size_of(png: Path) -> tuple[int, int]:
    width, height = struct.unpack(">II", png.read_bytes()[16:24])
    return width, height


def test_pictures_are_small():
    files = sorted(PICTURES.iterdir())
    assert {one.suffix for one in files} == {".png", ".svg"}
    assert [one.name for one in files if one.stat().st_size > 150_000] == []
    assert sum(one.stat().st_size for one in files) < 1_000_000
    assert {size_of(one)[0] for one in files if one.suffix == ".png"} == {1280, 375}
    assert "@font-face" not in (PICTURES / "top.svg").read_text(), "it would load something from elsewhere"


def test_every_picture_is_shown_and_described_for_those_who_cannot_see_it():
    shown = set()
    for page in SHOWN_ON:
        text = page.read_text(encoding="utf-8")
        for tag in re.findall(r"<img [^>]*>", text):
            assert re.search(r' alt="[^"]{20,}"', tag), tag
        found = re.findall(r'(?:src|srcset)="([^"]*)"', text) + re.findall(r"!\[[^\]]{20,}\]\(([^)]*)\)", text)
        shown |= {(page.parent / one).resolve() for one in found}
    assert {one for one in shown if one.parent == PICTURES} == set(PICTURES.iterdir())


def test_without_a_browser_the_command_says_what_is_missing_and_touches_nothing(tmp_path: Path):
    before = {one: one.stat().st_mtime_ns for one in PICTURES.iterdir()}
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tools.screenshots"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "there is no chromium: `make system-deps` installs it" in ended.stderr
    assert {one: one.stat().st_mtime_ns for one in PICTURES.iterdir()} == before


def test_a_small_picture_has_the_pixels_of_the_large_one():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 40, "height": 30})
        tab.set_content("<body style='margin: 0; background: #123456'><div style='height: 10px; background: #fedcba'>")
        small = small_png(tab, tab.screenshot())
        browser.close()
    # A header, a palette of the two colours, and lines without filters.
    palette = re.search(rb"PLTE(.{6})", small, re.DOTALL)
    assert palette is not None and palette[1] == bytes.fromhex("123456fedcba")
    at = small.index(b"IDAT")
    [length] = struct.unpack(">I", small[at - 4 : at])
    lines = zlib.decompress(small[at + 4 : at + 4 + length])
    assert lines == (b"\0" + b"\1" * 40) * 10 + (b"\0" + b"\0" * 40) * 20
    for start in (8, at - 4):
        [size] = struct.unpack(">I", small[start : start + 4])
        body = small[start + 4 : start + 8 + size]
        assert struct.unpack(">I", small[start + 8 + size : start + 12 + size]) == (zlib.crc32(body),)


@pytest.mark.parametrize("name", ["overview", "matrix"])
def test_light_and_dark_pictures_differ_and_show_the_same(name: str):
    light, dark = (PICTURES / f"{name}-{scheme}.png" for scheme in ("light", "dark"))
    assert light.read_bytes() != dark.read_bytes()
    assert abs(size_of(light)[1] - size_of(dark)[1]) < 60
