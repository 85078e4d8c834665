"""The library's own evaluation: `python evaluate_v0.py` reads a list of {kind, replies, group} and writes rows by kind.

A reply is text, or a call {name, arguments}; which one comes is looked up by the task's question, the member of the
group and the number of the turn, so that both sides hear the same.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import httpx
from openai import AsyncOpenAI
from v0_zoo import load_environment
from verifiers.legacy.clients import OpenAIChatCompletionsClient


def answering(asked: dict[str, Any]) -> Callable[[httpx.Request], httpx.Response]:
    """The endpoint of one evaluation."""
    members: dict[str, int] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        messages = json.loads(request.content)["messages"]
        question = next(message["content"] for message in messages if message["role"] == "user")
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == 0:
            members[question] = members.get(question, -1) + 1
        reply = asked["replies"][question][members[question]][turn]
        message = {"role": "assistant", "content": reply}
        if isinstance(reply, dict):
            function = {"name": reply["name"], "arguments": json.dumps(reply["arguments"])}
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"c{turn}", "type": "function", "function": function}],
            }
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        return httpx.Response(200, json=body)

    return answer


async def evaluate(asked: dict[str, Any]) -> list[dict[str, Any]]:
    http = httpx.AsyncClient(transport=httpx.MockTransport(answering(asked)))
    client = OpenAIChatCompletionsClient(AsyncOpenAI(api_key="x", base_url="http://here/v1", http_client=http))
    environment = load_environment(asked["kind"])
    told = {"on_start": quiet, "on_progress": quiet}
    outputs = await environment.evaluate(client, "m", rollouts_per_example=asked["group"], max_concurrent=1, **told)
    kept = ("example_id", "reward", "metrics", "stop_condition", "is_truncated", "prompt", "completion")
    return [{key: row[key] for key in kept} for row in outputs["outputs"]]


async def main() -> None:
    rows = {asked["kind"]: await evaluate(asked) for asked in json.load(sys.stdin)}
    sys.stdout.write("TOLD")
    json.dump(rows, sys.stdout, default=lambda thing: thing.model_dump(exclude_none=True))


def quiet(*_: object) -> None:
    pass


asyncio.run(main())
