"""What clients of DeepSeek's own API send and read: thinking, effort, prefix completion, /beta, its usage fields."""
import openai
import pytest
from conftest import Server, literal

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def v4():
    server = Server("--max-model-len", "1024", "--chat-template", "deepseek_v4")
    yield server
    assert server.stop() == 0


def prompt(server, **fields):
    reply = server.post("/apply-template", dict({"messages": USER}, **fields))
    assert reply.status == 200, reply.body
    return reply.json["prompt"]


def test_thinking_is_on_unless_switched_off(v4):
    assert prompt(v4).endswith("<think>") and prompt(v4, thinking={"type": "enabled"}) == prompt(v4)
    assert prompt(v4, thinking={"type": "disabled"}).endswith("</think>")
    assert prompt(v4, thinking={"type": "disabled"}, reasoning_effort="max").endswith("</think>")


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh", "max", "ultra"])
def test_efforts(v4, effort):
    """The encoding of V4 has one instruction for the highest effort, and none for others."""
    text = prompt(v4, reasoning_effort=effort)
    assert text.endswith("<think>") and ("Absolute maximum" in text) == (effort in ("max", "ultra"))
    assert prompt(v4, reasoning_effort="none").endswith("</think>")


@pytest.mark.parametrize("thinking,opening", [("enabled", "<think></think>"), ("disabled", "</think>")])
def test_prefix_completion(v4, thinking, opening):
    messages = USER + [{"role": "assistant", "content": "It is", "prefix": True}]
    assert prompt(v4, messages=messages, thinking={"type": thinking}).endswith(f"<｜Assistant｜>{opening}It is")
    for path in (CHAT, "/beta/chat/completions", "/beta/v1/chat/completions", "/chat/completions"):
        body = {"messages": messages, "thinking": {"type": thinking}, "grammar": literal(" warm."), "temperature": 0}
        message = v4.post(path, body).json["choices"][0]["message"]
        assert message["content"] == " warm." and not message.get("reasoning_content")


def test_prefix_with_a_thought(v4):
    messages = USER + [{"role": "assistant", "content": "It is", "reasoning_content": "hm", "prefix": True}]
    assert prompt(v4, messages=messages).endswith("<｜Assistant｜><think>hm</think>It is")


def test_prefix_is_for_the_assistants_last_text(v4):
    for last in ({"role": "user", "content": "x", "prefix": True}, {"role": "assistant", "content": None, "prefix": True}):
        reply = v4.post(CHAT, {"messages": USER + [last]})
        assert reply.status == 400 and reply.error["param"] == "messages"
    reply = v4.post(CHAT, {"messages": USER + [{"role": "assistant", "content": "x", "prefix": "yes"}]})
    assert reply.status == 400 and reply.error["param"] == "messages[1].prefix"


def test_client_of_the_beta_path(v4):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{v4.port}/beta", api_key="none", max_retries=0)
    answer = client.chat.completions.create(
        model="deepseek-chat", messages=USER + [{"role": "assistant", "content": "```python\n", "prefix": True}],
        stop=["```"], temperature=0, extra_body={"grammar": literal("print(1)\n```"), "user_id": "u"})
    assert answer.choices[0].message.content == "print(1)\n"
    usage = answer.usage.model_dump()
    assert usage["prompt_cache_hit_tokens"] + usage["prompt_cache_miss_tokens"] == usage["prompt_tokens"]
    chunks = list(client.chat.completions.create(
        model="deepseek-reasoner", messages=USER, temperature=0, stream=True, presence_penalty=1,
        extra_body={"grammar": literal("hm</think>Hi.")}))
    assert "".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in chunks) == "hm"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Hi."
