"""The prefix cache as clients see it: usage, timings, progress, salts and keys, metrics."""
import pytest
from test_chat import check_timings, check_usage

CHAT = "/v1/chat/completions"
TEXT = "Count the words of this sentence, which is long enough to fill more than two blocks of the cache. " * 3


def cached(answer):
    check_usage(answer["usage"])
    check_timings(answer["timings"], answer["usage"])
    assert answer["timings"]["cache_n"] == answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["timings"]["cache_n"]


def text(answer):
    return answer["choices"][0]["message"]["content"]


@pytest.fixture
def fresh(start):
    return start("--max-model-len", "1024")


def test_the_same_prompt_is_found_and_answered_alike(fresh):
    asked, found = (fresh.metric(f"prefix_cache_{kind}_tokens_total") for kind in ("query", "hit"))
    first = fresh.chat(TEXT, logprobs=True)
    second = fresh.chat(TEXT, logprobs=True)
    n_prompt = first["usage"]["prompt_tokens"]
    assert n_prompt > 64 and cached(first) == 0 and cached(second) == (n_prompt - 1) // 32 * 32
    assert first["choices"] == second["choices"]
    assert fresh.metric("prefix_cache_query_tokens_total") - asked == 2 * n_prompt
    assert fresh.metric("prefix_cache_hit_tokens_total") - found == cached(second)
    assert fresh.wait_idle() and fresh.metric("kv_blocks_used") == 0 and fresh.metric("kv_blocks_cached") > 0


def test_streams_tell_what_was_cached(fresh):
    body = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 3, "temperature": 0, "return_progress": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    fresh.stream(CHAT, body)
    events = fresh.stream(CHAT, body)[:-1]
    last = events[-1]["usage"]
    check_usage(last)
    hit = last["prompt_cache_hit_tokens"]
    assert hit >= 64
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert progress and all(p["cache"] == hit < p["processed"] <= p["total"] for p in progress)
    usages = [event["usage"] for event in events if event.get("usage") and event["choices"]]
    assert usages[-1]["prompt_cache_hit_tokens"] == hit


def test_completions_count_all_their_prompts(fresh):
    body = {"prompt": [TEXT, "1 2 3 " + TEXT], "max_tokens": 2, "n": 2, "temperature": 0}
    first = fresh.post("/v1/completions", body).json
    second = fresh.post("/v1/completions", body).json
    assert first["usage"]["prompt_cache_hit_tokens"] == 0
    assert second["usage"]["prompt_cache_hit_tokens"] >= 96
    assert first["choices"] == second["choices"]


def test_echoed_logprobs_are_the_same_from_a_cached_prompt(fresh):
    body = {"prompt": TEXT, "max_tokens": 2, "echo": True, "logprobs": 1, "temperature": 0}
    first = fresh.post("/v1/completions", body).json
    second = fresh.post("/v1/completions", body).json
    assert first["choices"] == second["choices"]
    assert len(first["choices"][0]["logprobs"]["token_logprobs"]) == first["usage"]["total_tokens"]


def test_a_salt_separates(fresh):
    assert cached(fresh.chat(TEXT)) == 0
    assert cached(fresh.chat(TEXT, cache_salt="a")) == 0
    assert cached(fresh.chat(TEXT, cache_salt="b")) == 0
    assert cached(fresh.chat(TEXT, cache_salt="a")) > 0
    assert cached(fresh.chat(TEXT, cache_salt=None)) > 0


@pytest.mark.parametrize("salt", ["", 5, ["a"], True, "a\0b"])
def test_a_bad_salt_is_refused_by_name(server, salt):
    reply = server.post(CHAT, {"messages": [{"role": "user", "content": "x"}], "cache_salt": salt})
    assert reply.status == 400 and reply.error["param"] == "cache_salt"


def test_keys_never_share_unless_they_name_the_same_salt(start):
    server = start("--api-key", "one", "--api-key", "two")

    def ask(key, **fields):
        body = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 2, "temperature": 0, **fields}
        return cached(server.post(CHAT, body, headers={"Authorization": f"Bearer {key}"}).json)

    assert ask("one") == 0
    assert ask("two") == 0
    assert ask("one") > 0 and ask("two") > 0
    assert ask("two", cache_salt="one") == 0  # a salt is not a key
    assert ask("one", cache_salt="one") > 0


def test_without_prefix_caching_nothing_is_kept(start):
    server = start("--no-enable-prefix-caching")
    first, second = server.chat(TEXT), server.chat(TEXT)
    assert cached(first) == cached(second) == 0 and text(first) == text(second)
    assert server.metric("kv_blocks_cached") == 0 and server.metric("prefix_cache_query_tokens_total") == 0


def test_no_more_than_its_share_of_memory_is_kept(start):
    server = start("--prefix-cache-memory", "1")
    assert cached(server.chat(TEXT)) == cached(server.chat(TEXT)) == 0
    assert server.wait_idle() and server.metric("kv_blocks_cached") == 0
    assert server.metric("prefix_cache_evictions_total") > 0
