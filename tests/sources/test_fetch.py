"""Fetching: bounded in time, size and redirects, and never from a machine that is not meant."""

from __future__ import annotations

import gzip
import shutil
import socket
import ssl
import subprocess
import threading
import time
from ipaddress import ip_address

import pytest

from holdfast.runtime import allowed_addresses
from holdfast.runtime.allowed_addresses import is_public
from holdfast.sources.contract import SourceFailed
from holdfast.sources.fetch import Policy, fetch
from tests.sources.site import serving
from tests.support.slowness import slowness

pytestmark = [pytest.mark.req("J20"), pytest.mark.fault(80)]

HERE = Policy(allow_private=True, connect_seconds=2, read_seconds=2, request_seconds=3, max_bytes=100_000)


def text(url: str, policy: Policy = HERE, **more) -> bytes | None:
    document = fetch(url, policy, **more)
    if document is None:
        return None
    with document:
        return document.file.read()


# Where to -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.org/x",
        "gopher://example.org/",
        "/etc/passwd",
        "http://",
        "http://[::1",
        "javascript:1",
        "http://exa mple.org/",
        "http://example.org:0/",
        "http://example.org:99999/",
    ],
)
def test_only_http_addresses_are_asked(url):
    with pytest.raises(SourceFailed):
        fetch(url, HERE)


@pytest.mark.req("V12")
@pytest.mark.fault(82)
@pytest.mark.parametrize("password", ["hun#ter22", "12#ter22", "hun/ter22", "hun?ter22", "hun\u2100ter22", "hun@ter22"])
def test_no_part_of_the_password_of_an_address_is_told(password):
    with pytest.raises(SourceFailed) as raised:
        fetch(f"https://me:{password}@127.0.0.1:1/x", Policy())
    assert not any(part in str(raised.value) for part in ("hun", "ter22", "12#", "me:12"))


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0.0.0.0",
        "[::ffff:127.0.0.1]",
        "169.254.169.254",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.100.100.200",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "168.63.129.16",
        "224.0.0.1",
        "[fec0::1]",
    ],
)
def test_machines_that_are_not_on_the_public_internet_are_refused_however_they_are_written(host):
    began = time.monotonic()
    with pytest.raises(
        SourceFailed, match=r"not an address of the public internet.*allow_private|could not be looked up"
    ):
        fetch(f"http://{host}:9/x", Policy(connect_seconds=60))
    assert time.monotonic() - began < 30 * slowness()


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"]
)
def test_public_addresses_are_public(address):
    assert is_public(ip_address(address))


def test_a_redirect_to_loopback_is_refused_like_any_other_way_there(site, monkeypatch):
    """The first host is public as far as the check can see; the machine it sends us to is not."""
    secret = site.put("/secret", "metadata")
    start = site.redirect("/start", secret.replace("127.0.0.1", "127.0.0.2"))
    monkeypatch.setattr(allowed_addresses, "is_public", lambda address: str(address) == "127.0.0.1")
    with pytest.raises(SourceFailed, match=r"127\.0\.0\.2 is at 127\.0\.0\.2"):
        fetch(start, Policy())
    assert site.asked == ["/start"]


@pytest.mark.parametrize("target", ["file:///etc/passwd", "//", "http://", "ftp://127.0.0.1/"])
def test_a_redirect_leads_to_http_or_nowhere(site, target):
    with pytest.raises(SourceFailed):
        fetch(site.redirect("/start", target), HERE)


def test_a_name_is_looked_up_once_and_the_checked_address_is_the_one_that_is_asked(site, monkeypatch):
    """A name that means another machine the second time (DNS rebinding) gains nothing."""
    site.put("/", "here")
    port = int(site.url.rpartition(":")[2])
    answers = [("127.0.0.1", port), ("169.254.169.254", port)]
    real = socket.getaddrinfo

    def rebinding(host, *rest, **more):
        assert host == "rebind.test"
        place = answers.pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place)]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    monkeypatch.setattr(allowed_addresses, "is_public", lambda address: str(address) == "127.0.0.1")
    assert text(f"http://rebind.test:{port}/", Policy()) == b"here"
    assert len(answers) == 1
    with pytest.raises(SourceFailed, match=r"169.254.169.254"):
        fetch(f"http://rebind.test:{port}/", Policy())
    monkeypatch.setattr(socket, "getaddrinfo", real)


def test_a_name_that_nobody_answers_for_is_given_up(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: threading.Event().wait(5))
    with pytest.raises(SourceFailed, match=r"slow\.test could not be looked up within 0\.1 s"):
        fetch("http://slow.test/", Policy(connect_seconds=0.1))


def test_redirects_are_followed_up_to_a_limit(site):
    site.put("/end", "there")
    for n in range(5):
        site.redirect(f"/{n}", f"/{n + 1}" if n < 4 else "/end", status=[301, 302, 303, 307, 308][n])
    assert text(f"{site.url}/0") == b"there"
    site.redirect("/loop", "/loop")
    with pytest.raises(SourceFailed, match="redirects more than 5 times"):
        fetch(f"{site.url}/loop", HERE)


def test_secret_headers_go_to_the_origin_they_were_written_for_and_nowhere_else(site):
    policy = Policy(allow_private=True, headers={"Authorization": "Bearer secret", "user-agent": "mine"})
    with serving() as other:
        other.put("/there", "x")
        site.redirect("/away", f"{other.url}/there")
        site.redirect("/here", "/away")
        assert text(f"{site.url}/here", policy) == b"x"
        assert [asked.get("authorization") for asked in site.headers] == ["Bearer secret"] * 2
        assert site.headers[0]["user-agent"] == "mine"
        assert "authorization" not in other.headers[0]
        assert text(f"{other.url}/there", policy, home=site.url) == b"x"
        assert "authorization" not in other.headers[1]


def test_a_user_and_password_in_the_address_are_sent_and_never_shown(site):
    site.put("/ok", "x")
    at = site.url.replace("://", "://me:p%40ss@")
    assert text(f"{at}/ok") == b"x"
    assert site.headers[0]["authorization"] == "Basic bWU6cEBzcw=="
    with pytest.raises(SourceFailed) as raised:
        fetch(f"{at}/gone?token=secret", HERE)
    assert "p%40ss" not in str(raised.value) and "secret" not in str(raised.value) and "404" in str(raised.value)


# How much -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [True, False])
def test_an_endless_body_is_cut_at_the_size_limit(site, length):
    def endless(request):
        request.send_response(200)
        if length:
            request.send_header("Content-Length", str(10**12))
        request.end_headers()
        while not site.ending.is_set():
            request.wfile.write(b"nonsense" * 1000)

    began = time.monotonic()
    with pytest.raises(SourceFailed, match=r"sends more than 100,000 bytes.*max_bytes"):
        fetch(site.serve("/endless", endless), HERE)
    assert time.monotonic() - began < 30 * slowness()


def test_a_body_that_drips_is_cut_at_the_time_limit_though_no_single_byte_is_late(site):
    def drip(request):
        request.send_response(200)
        request.end_headers()
        while not site.ending.wait(0.05):
            request.wfile.write(b"x")

    began = time.monotonic()
    with pytest.raises(SourceFailed, match=r"took longer than 0\.5 s"):
        fetch(site.serve("/drip", drip), Policy(allow_private=True, request_seconds=0.5))
    assert time.monotonic() - began < 30 * slowness()


def test_headers_that_drip_are_cut_at_the_time_limit(site):
    def drip(request):
        request.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not site.ending.wait(0.05):
            request.wfile.write(b"x")

    with pytest.raises(SourceFailed, match=r"took longer than 0\.5 s"):
        fetch(site.serve("/drip", drip), Policy(allow_private=True, request_seconds=0.5))


def test_a_server_that_never_answers_is_given_up(site):
    policy = Policy(allow_private=True, read_seconds=0.3)
    with pytest.raises(SourceFailed, match=r"no answer within 0\.3 s"):
        fetch(site.serve("/silent", lambda _: site.ending.wait(10)), policy)


def test_a_server_that_is_not_there_is_said_in_one_line():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(SourceFailed, match=r"^http://127\.0\.0\.1:\d+/x: Connection refused$"):
        fetch(f"http://127.0.0.1:{port}/x", HERE)


def test_a_body_that_ends_too_early_is_no_body(site):
    site.serve("/cut", lambda request: request.answer(200, b"half", Content_Length=1000))
    with pytest.raises(SourceFailed, match="ends too early"):
        fetch(f"{site.url}/cut", HERE)


def test_a_chunked_body_that_ends_too_early_is_no_body(site):
    def chunked(request):
        request.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        request.close_connection = True

    with pytest.raises(SourceFailed):
        fetch(site.serve("/cut", chunked), HERE)


def test_something_that_is_not_http_is_said_so(site):
    with pytest.raises(SourceFailed, match="BadStatusLine"):
        fetch(site.serve("/odd", lambda request: request.wfile.write(b"SSH-2.0-OpenSSH\r\n\r\n")), HERE)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("a certificate for the test is made with the program openssl")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            "key",
            "-out",
            "certificate",
            "-days",
            "2",
            "-subj",
            "/CN=named.test",
            "-addext",
            "subjectAltName=DNS:named.test",
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder


def test_over_tls_the_name_in_the_address_must_be_the_one_in_the_certificate(site, certificate, monkeypatch):
    """Though the connection is made to a number, which no certificate names."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate / "certificate", certificate / "key")
    with serving(server) as secure:
        secure.put("/", "secret")
        port = secure.url.rpartition(":")[2]
        place = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port)))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: place)
        with pytest.raises(SourceFailed, match="its certificate is not valid"):
            fetch(f"https://named.test:{port}/", HERE)
        trusting = ssl.create_default_context(cafile=str(certificate / "certificate"))
        monkeypatch.setattr("holdfast.runtime.http_request._tls", lambda: trusting)
        assert text(f"https://named.test:{port}/") == b"secret"
        with pytest.raises(SourceFailed, match=r"its certificate is not valid.*other.test"):
            fetch(f"https://other.test:{port}/", HERE)


# What -----------------------------------------------------------------------------------------------------------------


def test_gzip_is_unpacked_as_an_encoding_as_a_file_and_as_both(site):
    once, twice = gzip.compress(b"text"), gzip.compress(gzip.compress(b"text"))
    assert text(site.put("/a", once, Content_Encoding="gzip")) == b"text"
    assert text(site.put("/b.gz", once)) == b"text"
    assert text(site.put("/c.gz", twice, Content_Encoding="gzip")) == b"text"
    assert text(site.put("/d.gz", gzip.compress(b"te") + gzip.compress(b"xt") + b"\0" * 20)) == b"text"
    assert text(site.put("/e", b"")) == b""
    assert text(site.put("/f", b"\x1f")) == b"\x1f"


def test_a_gzip_bomb_is_cut_at_the_size_limit(site):
    bomb = gzip.compress(bytes(50_000_000))
    assert len(bomb) < HERE.max_bytes
    for headers in ({"Content_Encoding": "gzip"}, {}):
        with pytest.raises(SourceFailed, match="sends more than 100,000 bytes"):
            fetch(site.put("/bomb", bomb, **headers), HERE)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (gzip.compress(b"text" * 1000)[:-10], "ends too early"),
        (b"\x1f\x8bnonsense" * 10, "is damaged"),
        (gzip.compress(b"text" * 1000)[:-8] + b"12345678", "is damaged"),
    ],
    ids=["cut off", "nonsense", "wrong sum"],
)
def test_damaged_gzip_is_said_so(site, body, said):
    with pytest.raises(SourceFailed, match=f"its gzip {said}"):
        fetch(site.put("/x.gz", body), HERE)


def test_an_encoding_that_nobody_asked_for_is_refused(site):
    with pytest.raises(SourceFailed, match="encoded as 'br'"):
        fetch(site.put("/x", b"x", Content_Encoding="br"), HERE)


def test_a_document_that_has_not_changed_is_not_sent_again(site):
    url = site.put("/a", "one", etag=True)
    with fetch(url, HERE) as document:
        notes = document.notes
    assert fetch(url, HERE, known=notes) is None
    assert site.headers[1]["if-none-match"] == notes["etag"]
    site.put("/a", "two", etag=True)
    assert text(url, known=notes) == b"two"


def test_where_a_server_knows_no_etag_the_content_decides(site):
    url = site.put("/a", "one", Last_Modified="Mon, 02 Mar 2026 10:00:00 GMT")
    with fetch(url, HERE) as document:
        notes = document.notes
    assert fetch(url, HERE, known=notes) is None
    assert site.headers[1]["if-modified-since"] == "Mon, 02 Mar 2026 10:00:00 GMT"


@pytest.mark.parametrize(
    ("given", "least", "most"),
    [
        ("120", 120, 120),
        ("Wed, 21 Oct 2065 07:28:00 GMT", 10**8, 10**10),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
    ],
)
def test_how_long_a_server_asks_us_to_wait_is_passed_on(site, given, least, most):
    with pytest.raises(SourceFailed) as raised:
        fetch(site.put("/busy", b"", status=429, Retry_After=given), HERE)
    assert least <= raised.value.retry_after <= most
    with pytest.raises(SourceFailed) as raised:
        fetch(site.put("/busy", b"", status=503, Retry_After="soon"), HERE)
    assert raised.value.retry_after is None


def test_a_look_that_has_to_end_ends_in_the_middle_of_a_body(site):
    class Enough(Exception):
        pass

    asked = []

    def check():
        asked.append(1)
        if len(asked) > 2:
            raise Enough

    with pytest.raises(Enough):
        fetch(site.put("/a", b"x" * 99_000), HERE, check=check)
