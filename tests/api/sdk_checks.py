"""Run by test_sdk.py with one version of the openai package: python sdk_checks.py VERSION. Server and key come from the
environment, as a user would set them. Answers are validated strictly against the package's own types."""
import asyncio
import sys

import openai
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

assert openai.__version__ == sys.argv[1], openai.__version__
client = openai.OpenAI(max_retries=0)
USER = [{"role": "user", "content": "Say hi"}]


def strict(kind, value):
    """The client itself builds its objects without validation."""
    assert isinstance(value, kind)
    kind.model_validate(value.model_dump(warnings=False), strict=True)
    return value


def chat():
    answer = strict(ChatCompletion, client.chat.completions.create(model="tiny", messages=USER, max_tokens=4, temperature=0))
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 4
    assert 0 <= answer.usage.prompt_tokens_details.cached_tokens < answer.usage.prompt_tokens
    chunks = list(client.chat.completions.create(model="tiny", messages=USER, max_tokens=4, temperature=0, stream=True,
                                                 stream_options={"include_usage": True}))
    for chunk in chunks:
        strict(ChatCompletionChunk, chunk)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-1].usage.total_tokens == answer.usage.total_tokens


def helpers():
    """The accumulating stream helper adds numbers up and needs indices."""
    with client.chat.completions.stream(model="tiny", messages=USER, n=2, logprobs=True, top_logprobs=2,
                                        extra_body={"grammar": 'root ::= "Hello there"'}) as stream:
        for _ in stream:
            pass
    final = stream.get_final_completion()
    assert [c.message.content for c in final.choices] == ["Hello there"] * 2
    for choice in final.choices:
        assert "".join(entry.token for entry in choice.logprobs.content) == "Hello there"


def every_parameter():
    """What the package's own tests send."""
    answer = client.chat.completions.create(
        messages=[{"content": "string", "role": "developer", "name": "name"}, *USER], model="gpt-5.4",
        frequency_penalty=-2, function_call="none", functions=[{"name": "name", "description": "x", "parameters": {}}],
        logit_bias={"foo": 0}, logprobs=True, max_completion_tokens=0, max_tokens=0, metadata={"foo": "string"},
        modalities=["text"], n=1, parallel_tool_calls=True, prediction={"content": "string", "type": "content"},
        presence_penalty=-2, reasoning_effort="none", response_format={"type": "text"}, safety_identifier="x",
        seed=-9007199254740991, service_tier="auto", stop="\n", store=True, stream=False,
        stream_options={"include_usage": True}, temperature=1, tool_choice="none",
        tools=[{"function": {"name": "name", "parameters": {}, "strict": True}, "type": "function"}], top_logprobs=0,
        top_p=1, user="user-1234", verbosity="low", web_search_options={})
    assert strict(ChatCompletion, answer).choices[0].message.content == ""


def completions():
    strict(Completion, client.completions.create(model="tiny", prompt=["One, two,"], max_tokens=3, logprobs=2))
    # The first token of an echoed prompt has no probability: null, as OpenAI sends it, which its own types forget.
    answer = client.completions.create(model="tiny", prompt=["One, two,", "Red,"], max_tokens=3, temperature=0, logprobs=2,
                                       echo=True, n=2)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text.startswith("One, two,") and answer.choices[0].logprobs.token_logprobs[0] is None
    chunks = list(client.completions.create(model="tiny", prompt="One, two,", max_tokens=3, temperature=0, stream=True))
    strict(Completion, chunks[-1])  # the others have finish_reason null, which the types of a stream lack
    assert "One, two," + "".join(c.choices[0].text for c in chunks) == answer.choices[0].text


def models():
    listed = client.models.list()
    assert [strict(Model, m).id for m in listed] == ["tiny", "org/tiny:q4"]
    assert client.models.retrieve("org/tiny:q4").max_model_len == 1024


def errors():
    for call, kind in (
            (lambda: client.chat.completions.create(model="tiny", messages=[]), openai.BadRequestError),
            (lambda: client.chat.completions.create(model="tiny", messages=USER, temperature=9), openai.BadRequestError),
            (lambda: client.models.retrieve("nope"), openai.NotFoundError),
            (lambda: client.embeddings.create(model="tiny", input="x"), openai.NotFoundError)):
        try:
            call()
        except kind as error:
            assert error.body["message"] and error.request_id
        else:
            raise AssertionError(f"no {kind}")
    try:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "word " * 3000}], stream=True)
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded" and error.body["n_ctx"] == 1024 and error.param == "messages"
    else:
        raise AssertionError("too long a prompt was taken")


def leaving_early():
    stream = client.chat.completions.create(model="tiny", messages=USER, max_tokens=500, stream=True,
                                            extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()


async def many_at_once():
    """The async client reads to the end of the body, to use its connection again."""
    async with openai.AsyncOpenAI(max_retries=0) as many:
        async def one(i):
            stream = await many.chat.completions.create(model="tiny", messages=USER, max_tokens=3, seed=i, stream=True)
            return [chunk async for chunk in stream]
        for chunks in await asyncio.gather(*(one(i) for i in range(6))):
            assert chunks[-1].choices[0].finish_reason


for check in (chat, helpers, every_parameter, completions, models, errors, leaving_early):
    check()
asyncio.run(many_at_once())
