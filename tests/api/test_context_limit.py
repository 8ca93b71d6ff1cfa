"""The end of the context on models with latent attention: an answer that reaches it ends with "length", a prompt beyond it is
refused with both numbers, and the server goes on for everyone else (a shifted cache does not exist)."""
import threading

import pytest
from conftest import DATA, Server

PATH = "/v1/completions"
CONTEXT = 256
MODELS = {"f16": [], "q8_0": ["--kv-cache-dtype", "q8_0"]}


@pytest.fixture(scope="module", params=MODELS)
def latent(request):
    server = Server("--max-model-len", str(CONTEXT), "--max-concurrent", "2", *MODELS[request.param],
                    model=str(DATA / "reference" / "gguf" / "deepseek_v2.gguf"))
    yield server
    assert server.stop() == 0, "".join(server.lines)


def prompt(n):
    """So many token ids."""
    return [2 + i * 7 % 500 for i in range(n)]


def body(n, **fields):
    return {"prompt": prompt(n), "ignore_eos": True, "seed": 7, "temperature": 1, "logprobs": 0} | fields


def streamed(server, request):
    """Log probabilities, finish reason and usage of a stream; everything a client needs arrives, and then [DONE]."""
    events = server.stream(PATH, dict(request, stream_options={"include_usage": True}))
    assert events[-1] == "[DONE]"
    choices = [event["choices"][0] for event in events[:-1] if event["choices"]]
    tokens = [token for choice in choices if choice["logprobs"] for token in choice["logprobs"]["token_logprobs"]]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert len(reasons) == 1
    return tokens, reasons[0], events[-2]["usage"]


def whole(server, request):
    reply = server.post(PATH, request)
    assert reply.status == 200, reply.body
    choice = reply.json["choices"][0]
    return choice["logprobs"]["token_logprobs"], choice["finish_reason"], reply.json["usage"]


def check_full(answer, n):
    tokens, reason, usage = answer
    assert reason == "length"
    assert usage["prompt_tokens"] == n and usage["completion_tokens"] == CONTEXT - n and tokens


@pytest.mark.parametrize("ask", [whole, streamed])
@pytest.mark.parametrize("limit", [{}, {"max_tokens": 1000}, {"max_tokens": -1}], ids=["none", "beyond", "minus one"])
def test_an_answer_that_reaches_the_context_ends_with_length(latent, ask, limit):
    for n in (10, 200, CONTEXT - 1):
        check_full(ask(latent, body(n, **limit)), n)
    assert latent.wait_idle()


def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(latent):
    for n in (CONTEXT, CONTEXT + 1, 300, 5000):
        for stream in (False, True):
            reply = latent.post(PATH, body(n, stream=stream))
            assert reply.status == 400, (n, reply.body)
            assert reply.error["code"] == "context_length_exceeded"
            assert reply.error["n_ctx"] == CONTEXT and reply.error["n_prompt_tokens"] == n


@pytest.mark.parametrize("ask", [whole, streamed])
def test_another_client_is_not_touched(latent, ask):
    """One answer to the end of the context, while a second client sends what killed other servers."""
    alone = ask(latent, body(16))
    results = []
    first = threading.Thread(target=lambda: results.append(ask(latent, body(16))))
    first.start()
    for _ in range(3):
        assert latent.post(PATH, body(300)).status == 400
        check_full(ask(latent, body(250, max_tokens=1000)), 250)
        assert latent.post(PATH, body(CONTEXT)).status == 400
        check_full(ask(latent, body(CONTEXT - 1)), CONTEXT - 1)
    first.join()
    check_full(results[0], 16)
    assert results[0][0] == alone[0], "other tokens beside another client"
    assert latent.wait_idle() and latent.get("/health").status == 200


def test_two_clients_reach_the_context_together(latent):
    """One streams, one does not, both grow without a limit into a pool that holds them."""
    alone = [streamed(latent, body(20)), whole(latent, body(33))]
    results = [None, None]

    def run(i, ask, n):
        results[i] = ask(latent, body(n))

    threads = [threading.Thread(target=run, args=(0, streamed, 20)), threading.Thread(target=run, args=(1, whole, 33))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result, before, n in zip(results, alone, (20, 33), strict=True):
        check_full(result, n)
        assert result[0] == before[0]
    assert latent.wait_idle() and latent.metric("kv_blocks_used") == 0
