"""The library's own evaluations: reads a list of {kind, replies} and writes their rows by kind, as JSON.

Environment, interception server, tool servers, trace and scoring are the library's; its chat program, which would be
started by `uv`, is the same loop in this process, speaking to the interception server over HTTP.
"""

import asyncio
import json
import sys
from contextlib import AsyncExitStack

from aiohttp import web
from openai import APIStatusError, AsyncOpenAI
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.harnesses.null.harness import NullHarness
from verifiers.v1.harnesses.utils.compaction import bound_tool_message
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult
from verifiers.v1.types import Sampling
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

replies = {asked["kind"]: asked["replies"] for asked in json.load(sys.stdin)}


async def answer(request: web.Request) -> web.Response:
    messages = (await request.json())["messages"]
    question = next(message["content"] for message in messages if message["role"] == "user")
    turn = sum(message["role"] == "assistant" for message in messages)
    reply = replies[request.match_info["kind"]][question][turn]
    message = {"role": "assistant", "content": reply}
    if isinstance(reply, dict):
        function = {"name": reply["name"], "arguments": json.dumps(reply["arguments"])}
        call = {"id": f"c{turn}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if isinstance(reply, dict) else "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    body = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
    return web.json_response(body)


async def nothing(harness, runtime) -> None:
    return None


async def launch(harness, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
    client = AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0)
    system, prompt = harness.resolve_prompt(data)
    messages = [{"role": "system", "content": system}] if system else []
    if isinstance(prompt, str):
        messages.append({"role": "user", "content": prompt})
    else:
        messages += [message.model_dump(exclude_none=True) for message in prompt or []]
    for message in messages:
        for call in message.get("tool_calls") or []:
            call["function"] = {"name": call.pop("name"), "arguments": call.pop("arguments")}
    async with AsyncExitStack() as stack:
        servers = {"mcpServers": {name: {"url": url} for name, url in mcp_urls.items()}}
        tools, dispatch, clients = await connect_mcp(servers, stack)
        while True:
            try:
                completion = await client.chat.completions.create(model="m", messages=messages, tools=tools or None)
            except APIStatusError as error:
                return ProgramResult(exit_code=1, stdout="", stderr=str(error))
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return ProgramResult(exit_code=0, stdout="", stderr="")
            for call in message.tool_calls:
                told = {"role": "tool", "tool_call_id": call.id, "name": call.function.name}
                content = f"error: unknown tool {call.function.name!r}"
                if call.function.name in dispatch:
                    arguments = json.loads(call.function.arguments)
                    content = await call_mcp(clients, dispatch, call.function.name, arguments)
                messages.append(bound_tool_message({**told, "content": content}))


async def evaluate(kind: str, port: int) -> list[dict]:
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}, "model": "m"}
    taskset = {"id": "v1_zoo", "task": {"kind": kind}}
    environment = load_environment(resolve_env_config({"taskset": taskset, "agent": agent}))
    context = ModelContext("m", EvalClientConfig(base_url=f"http://127.0.0.1:{port}/{kind}/v1"), Sampling())
    tasks = list(environment.taskset)
    async with environment.serving():
        # beside one another: each that has tools starts a process for them and waits for it
        episodes = await asyncio.gather(*(environment.run_episode(task, context) for task in tasks))
    return [row_of(task, episode) for task, episode in zip(tasks, episodes, strict=True)]


def row_of(task, episode) -> dict:
    [trace] = episode.traces
    row = trace.model_dump(mode="json")
    row["completion"] = [message.model_dump(mode="json", exclude_none=True) for message in trace.messages]
    row["is_truncated"] = trace.is_truncated
    row["reward"], row["errors"] = trace.reward, [str(error) for error in [*episode.errors, *trace.errors]]
    kept = ("reward", "rewards", "metrics", "stop_condition", "completion", "errors", "is_truncated")
    return {"idx": task.data.idx, **{key: row[key] for key in kept}}


async def main() -> None:
    NullHarness.setup, NullHarness.launch = nothing, launch
    app = web.Application()
    app.router.add_post("/{kind}/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    rows = {kind: await evaluate(kind, runner.addresses[0][1]) for kind in replies}
    await runner.cleanup()
    sys.stdout.write("\n" + json.dumps(rows) + "\n")


asyncio.run(main())
