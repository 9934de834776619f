"""`holdfast ui`: where it listens, and for whom."""

from __future__ import annotations

import httpx
import pytest

from tests.cli.conftest import Commands

pytestmark = pytest.mark.req("P17")

TOKEN = "a-token-that-nobody-guesses"
#: What is said only when everything about the address was accepted: there is no store here.
NEXT = "does not exist"


@pytest.mark.fault(78)
@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "192.0.2.7", "2001:db8::7", "board.example", "localhost.example", "127.0.0.1.example"]
)
def test_an_address_that_others_can_reach_needs_a_token(lite: Commands, host: str):
    for more in ((), ("--read-only",)):
        said = lite("ui", "--host", host, "--no-token", *more, code=2).stderr
        assert f"--no-token is for this machine alone, and --host {host!r} can be reached from others" in said
        assert "start it without" in said and "access=" in said
    assert NEXT in lite("ui", "--host", host, "--token", TOKEN, code=5).stderr
    assert NEXT in lite("ui", "--host", host, code=5).stderr


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.8.9.1", "::1"])
def test_this_machine_may_do_without_one(lite: Commands, host: str):
    assert NEXT in lite("ui", "--host", host, "--no-token", code=5).stderr


@pytest.mark.fault(78)
def test_the_printed_address_has_the_token_unless_there_is_none(cli: Commands):
    process = cli.start("ui", "--no-token", "--port", "0")
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert "token" not in address
    assert httpx.get(address).status_code == 200
    process = cli.start("ui", "--host", "0.0.0.0", "--port", "0")
    assert process.stdout is not None
    open_to_all = httpx.URL(process.stdout.readline().strip()).copy_with(host="127.0.0.1")
    assert httpx.get(open_to_all.copy_with(query=None)).status_code == 401
    assert httpx.get(open_to_all).status_code == 303
