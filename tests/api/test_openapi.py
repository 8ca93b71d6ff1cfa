"""/openapi.json: a document that is sound in itself, describes exactly the routes, and is true of answers."""
import json
import os
import re

import jsonschema
import pytest
from conftest import ROOT, gguf_with, literal, write_adapter

SOURCE = json.loads((ROOT / "src" / "server" / "openapi.json").read_text())
OPERATIONS = [(path, method) for path, item in SOURCE["paths"].items() for method in item]


@pytest.fixture(scope="module")
def holes(tmp_path_factory):
    """The test model with tokens for holes and an adapter to load, so that every endpoint has something to do."""
    from conftest import Server
    adapters = tmp_path_factory.mktemp("adapters")
    write_adapter(adapters / "one", "layers.0.self_attn.k_proj", 576, 192)
    keys = {f"tokenizer.ggml.fim_{part}_token_id": 3 + i for i, part in enumerate(("pre", "suf", "mid"))}
    model = gguf_with(os.environ["DSE_TEST_MODEL"], tmp_path_factory.mktemp("model") / "holes.gguf", keys)
    server = Server("--max-model-len", "512", "--served-model-name", "tiny", "--slot-save-path",
                    str(tmp_path_factory.mktemp("slots") / "slots"), "--lora-dir", str(adapters), model=model)
    yield server
    assert server.stop() == 0


def references(value):
    if isinstance(value, dict):
        yield from ([value["$ref"]] if "$ref" in value else [])
        for child in value.values():
            yield from references(child)
    elif isinstance(value, list):
        for child in value:
            yield from references(child)


def validate(value, schema):
    """schema: of an operation; its references are into the document."""
    jsonschema.Draft202012Validator(dict(schema, components=SOURCE["components"])).validate(value)


def test_it_is_what_the_source_says_with_a_key_too(start):
    server = start("--api-key", "secret", wait="listening")
    served = server.get("/openapi.json")
    assert served.status == 200 and served.headers["Content-Type"] == "application/json"
    version = server.get("/version").json["version"]
    assert served.json == dict(SOURCE, info=dict(SOURCE["info"], version=version))
    assert server.get("/v1/openapi.json").json == served.json
    assert server.get("/openapi.json", headers={"If-None-Match": served.headers["ETag"]}).status == 304


def test_the_document_is_sound():
    schemas = SOURCE["components"]["schemas"]
    used = set(references(SOURCE))
    assert used == {f"#/components/schemas/{name}" for name in schemas}
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    identities = [SOURCE["paths"][path][method]["operationId"] for path, method in OPERATIONS]
    assert len(set(identities)) == len(identities)
    for path, method in OPERATIONS:
        operation = SOURCE["paths"][path][method]
        assert {"200", "default"} <= set(operation["responses"]) and ("requestBody" in operation) == (method == "post")


def test_routes_and_paths_are_the_same():
    table = (ROOT / "src" / "server" / "server.c").read_text()
    # the page is no part of the interface
    rows = re.findall(r'\{"(/[^"]*)", ([A-Z_ |]+), dse_handle_(?!ui\b)', table)
    assert len(rows) > 15
    routes = {(path + "{id}" if "ROUTE_PREFIX" in flags else path, "get" if "ROUTE_GET" in flags else "post")
              for path, flags in rows}
    assert routes == {(path.removeprefix("/v1"), method) for path, method in OPERATIONS}
    public = {path + "{id}" if "ROUTE_PREFIX" in flags else path for path, flags in rows if "ROUTE_PUBLIC" in flags}
    assert public == {path for path, method in OPERATIONS if SOURCE["paths"][path][method].get("security") == [{}]}


def target(path, action="erase"):
    """Of a path with a place for a name: one that is there."""
    return path.replace("{id}", f"7?action={action}" if path.startswith("/slots") else "tiny")


@pytest.mark.parametrize("path,method", OPERATIONS)
def test_methods_are_those_that_are_allowed(server, path, method):
    other = {"get": "POST", "post": "GET"}[method]
    if len(SOURCE["paths"][path]) > 1:
        return  # both methods are there
    reply = server.request(other, target(path), body={} if other == "POST" else None)
    assert reply.status == 405 and method.upper() in reply.headers["Allow"]
    validate(reply.json, SOURCE["paths"][path][method]["responses"]["default"]["content"]["application/json"]["schema"])


USER = [{"role": "user", "content": "Hi"}]
TEXT = {"grammar": literal("ok"), "temperature": 0}
BODIES = {
    "/v1/chat/completions": dict(TEXT, messages=USER, n=2, logprobs=True, top_logprobs=2, stop=["x"], thinking={"type": "enabled"}),
    "/v1/completions": dict(TEXT, prompt=["a", [5, 6]], suffix="b", logprobs=1),
    "/v1/embeddings": {"input": ["a", [5, 6]], "encoding_format": None},
    "/v1/responses": dict(TEXT, input=[{"role": "user", "content": "Hi"}], instructions="x", max_output_tokens=5),
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/messages": dict(TEXT, messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], max_tokens=9, system="x"),
    "/v1/messages/count_tokens": {"messages": USER},
    "/infill": dict(TEXT, input_prefix="a", input_suffix="b", input_extra=[{"text": "c"}]),
    "/tokenize": {"content": "Hi", "with_pieces": True}, "/detokenize": {"tokens": [5, 6]},
    "/apply-template": {"messages": USER}, "/slots/{id}": {"filename": "x"},
    "/v1/load_lora_adapter": {"lora_name": "one", "lora_path": "one", "load_inplace": True},
    "/v1/unload_lora_adapter": {"lora_name": "one"},
    "/lora-adapters": [],
}
OBJECTS = sorted(path for path, body in BODIES.items() if isinstance(body, dict))


def test_the_stream_without_an_end_begins_as_described(server):
    with server.raw(b"GET /api/edge/events HTTP/1.1\r\nHost: localhost\r\n\r\n") as connection:
        assert b"Content-Type: text/event-stream" in connection.recv(4096)


@pytest.mark.parametrize("path,method", [o for o in OPERATIONS if o[0] != "/api/edge/events"])
def test_answers_are_as_described(holes, path, method):
    operation = SOURCE["paths"][path][method]
    body = BODIES[path] if method == "post" else None
    if "lora" in path:
        assert holes.post("/v1/load_lora_adapter", BODIES["/v1/load_lora_adapter"]).status == 200
    if body is not None:
        validate(body, operation["requestBody"]["content"]["application/json"]["schema"])
    reply = holes.request(method.upper(), target(path), body)
    kind = reply.headers["Content-Type"].split(";")[0]
    assert reply.status == 200 and kind in operation["responses"]["200"]["content"]
    if kind == "application/json":
        validate(reply.json, operation["responses"]["200"]["content"][kind]["schema"])


@pytest.mark.parametrize("path", OBJECTS)
def test_errors_are_as_described(holes, path):
    for body in ({}, {"model": 7}, b"no JSON", b"[]"):
        reply = holes.post(target(path, "save"), body)
        assert reply.status == 400, reply.body
        validate(reply.json, SOURCE["paths"][path]["post"]["responses"]["default"]["content"]["application/json"]["schema"])


@pytest.mark.parametrize("path", OBJECTS)
def test_ranges_that_are_described_are_kept(holes, path):
    """Every number with bounds in the description is refused beyond them, by name."""
    reference = SOURCE["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    fields = SOURCE["components"]["schemas"][reference.split("/")[-1]]["properties"]
    for name, schema in fields.items():
        for bound, step in (("minimum", -1), ("maximum", 1)):
            if bound not in schema or abs(schema[bound]) > 2**62:
                continue
            reply = holes.post(target(path), dict(BODIES[path], **{name: schema[bound] + step}))
            error = reply.json["error"]
            assert reply.status == 400 and error["message"].startswith(name), (name, reply.body)
