"""The page's files over HTTP: where they are shown, what is sent along, how they are cached. In a browser: tests/web."""

import gzip
import pathlib

import pytest

WEB = pathlib.Path(__file__).resolve().parent.parent.parent / "web"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FILES = {"/" if path.name == "index.html" else f"/ui/{path.name}": path for path in sorted(WEB.iterdir())}


@pytest.mark.parametrize("path", FILES)
def test_every_file_of_the_page_is_served_as_it_is(server, path):
    reply = server.get(path)
    assert reply.status == 200 and reply.body == FILES[path].read_bytes()
    assert reply.headers["Content-Type"] == TYPES[FILES[path].suffix]
    assert reply.headers["Content-Encoding"] is None and reply.headers["Cache-Control"] == "no-cache"
    policy = reply.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert reply.headers["Referrer-Policy"] == "no-referrer"
    head = server.request("HEAD", path)
    assert head.status == 200 and head.body == b"" and head.headers["ETag"] == reply.headers["ETag"]


def test_compressed_is_the_same_and_smaller_where_a_client_takes_it(server):
    plain = server.get("/ui/app.css")
    packed = server.get("/ui/app.css", headers={"Accept-Encoding": "br, gzip;q=0.5"})
    assert packed.headers["Content-Encoding"] == "gzip" and "Accept-Encoding" in packed.headers["Vary"]
    assert gzip.decompress(packed.body) == plain.body and len(packed.body) < len(plain.body) / 2
    assert packed.headers["ETag"] != plain.headers["ETag"]


@pytest.mark.parametrize(
    "accepts, encoding",
    [
        ("gzip", "gzip"),
        ("GZIP", "gzip"),
        ("*", "gzip"),
        ("deflate , gzip ;q=1", "gzip"),
        ("gzip;q=0", None),
        ("br", None),
        ("gzip;q=0, *", None),
        ("*;q=0", None),
        ("identity", None),
        ("gzipped", None),
        ("", None),
        (",,;=,", None),
    ],
)
def test_compression_is_agreed_on(server, accepts, encoding):
    assert server.get("/", headers={"Accept-Encoding": accepts}).headers["Content-Encoding"] == encoding


def test_an_unchanged_file_is_not_sent_again(server):
    tag = server.get("/").headers["ETag"]
    packed = server.get("/", headers={"Accept-Encoding": "gzip"}).headers["ETag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        reply = server.get("/", headers={"If-None-Match": known})
        assert reply.status == 304 and reply.body == b"" and reply.headers["ETag"] == tag
    for other in ('"other"', tag[:-2] + '"', tag[1:-1], packed, ""):
        assert server.get("/", headers={"If-None-Match": other}).status == 200


def test_only_the_files_of_the_page_are_there(server):
    for path in (
        "/ui/",
        "/ui/index.htm",
        "/ui/../src",
        "/ui/..%2f..%2fetc/passwd",
        "/index.html",
        "/v1/ui/app.js",
        "/beta/",
    ):
        reply = server.get(path)
        assert reply.status == 404 and reply.error["code"] == "not_found", path
    assert server.post("/", {}).status == 405


def test_off_means_off_and_auto_means_this_machine_only(start):
    hidden = start("--ui", "off")
    assert hidden.get("/").status == 404 and hidden.get("/ui/app.js").status == 404
    assert hidden.get("/v1/models").status == 200
    assert not any("dashboard" in line for line in hidden.lines)
    beyond = start("--host", "0.0.0.0", "--api-key", "k")
    assert beyond.get("/").status == 404
    wanted = start("--host", "0.0.0.0", "--api-key", "k", "--ui", "on")
    assert wanted.get("/").status == 200, "the page itself needs no key"
    assert wanted.get("/api/edge/events").status == 401
    assert any("chat and dashboard" in line for line in wanted.lines)
