"""Let a language model play this environment: any endpoint that speaks OpenAI's chat completions.

    pip install -r server/requirements.txt && python inference.py --tasks 5

API_BASE_URL   the endpoint, e.g. http://localhost:8080/v1   (left out: OpenAI's)
API_KEY        its token; HF_TOKEN and OPENAI_API_KEY are taken too
MODEL_NAME     the model
ENV_URL        a running server of this environment          (left out: one is started here)

What the model reads, how its reply becomes an action and what the reward is made of stands in openenv.yaml.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from openai import OpenAI
from openenv import GenericEnvClient

HERE = Path(__file__).resolve().parent
MANIFEST = yaml.safe_load((HERE / "openenv.yaml").read_text(encoding="utf-8"))
PROCTOR = MANIFEST["proctor"]
AGENT, ACTION = PROCTOR["agent"], PROCTOR["agent"]["action"]
EPISODE = {"max_turns": 8, "step_timeout_seconds": 10, "max_tokens_per_turn": 256, **PROCTOR.get("episode", {})}
TASKS = {"train": 1000, "heldout": 200, "levels": 1, **PROCTOR.get("tasks", {})}
HELDOUT_SEED_BASE = 10_000_000
START_SECONDS = 120
JINJA = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)


class Unreadable(ValueError):
    """A reply that is no action, in words for the model."""


# from observations to words, from words to actions


def render(template: str, **names: Any) -> str:
    return JINJA.from_string(template).render(**names)


def words_of(observation: dict[str, Any]) -> str:
    return render(AGENT.get("observation", "{{ observation }}"), **{**observation, "observation": observation})


def action_of(reply: str) -> dict[str, Any]:
    """Raises Unreadable."""
    kind = ACTION.get("format", "text")
    if kind == "json":
        return json_action(reply)
    if kind == "tool":
        return call_action(reply)
    text = reply.strip()
    if kind == "tag":
        tag = ACTION["tag"]
        found = re.findall(rf"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", reply, re.DOTALL)
        if len(found) != 1:
            raise Unreadable(f"Found {len(found) or 'no'} <{tag}>…</{tag}>; write exactly one.")
        text = found[0].strip()
    elif not text:
        raise Unreadable("The reply is empty.")
    return {ACTION["field"]: value_of(text)}


def value_of(text: str) -> Any:
    kind = ACTION.get("type", "string")
    try:
        if kind == "integer" and len(text) <= 20:
            return int(text)
        return float(text) if kind == "number" else text if kind == "string" else int("no integer")
    except ValueError:
        expected = "an integer" if kind == "integer" else "a number"
        raise Unreadable(f"{text[:40]!r} is not {expected}.") from None


def json_action(reply: str) -> dict[str, Any]:
    fenced = re.match(r"^```(?:json)?\s*\n(.*?)\n```\s*$", reply.strip(), re.DOTALL)
    try:
        value = json.loads(fenced.group(1) if fenced else reply)
    except ValueError as error:
        raise Unreadable(f"The reply is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise Unreadable("The reply is JSON, but not an object.")
    return value


def call_action(reply: str) -> dict[str, Any]:
    extra = ACTION.get("extra") or {}
    if ACTION.get("text") and reply.strip() and "<tool_call>" not in reply:
        return {ACTION["text"]: reply.strip(), **extra}
    found = re.findall(r"<tool_call>(.*?)</tool_call>", reply, re.DOTALL)
    if not found:
        raise Unreadable("No tool was called. Call one of the tools you were given.")
    if len(found) != 1:
        raise Unreadable(f"Found {len(found)} calls; make exactly one.")
    try:
        call = json.loads(found[0])
        name, arguments = call["name"], call.get("arguments") or {}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Unreadable('A call is written {"name": "…", "arguments": {…}}.') from None
    return {ACTION["field"]: name, ACTION.get("arguments", "arguments"): arguments, **extra}


# the model


class Model:
    """Asks the endpoint. Tools, where this environment has some, are given by the endpoint's own means."""

    def __init__(self) -> None:
        key = os.environ.get("API_KEY") or os.environ.get("HF_TOKEN") or os.environ.get("OPENAI_API_KEY")
        self.client = OpenAI(base_url=os.environ.get("API_BASE_URL") or None, api_key=key or "none", max_retries=4)
        self.name = os.environ.get("MODEL_NAME", "")
        if not self.name:
            sys.exit("set MODEL_NAME to the model that is to play")
        self.calls = 0
        """That the newest reply asked for; the first is made."""

    def reply(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        """A call comes back in the words of a call."""
        listed = [{"type": "function", "function": tool} for tool in tools]
        answer = self.client.chat.completions.create(
            model=self.name,
            messages=messages,
            max_tokens=EPISODE["max_tokens_per_turn"],
            temperature=float(os.environ.get("TEMPERATURE", "0")),
            **({"tools": listed} if listed else {}),
        )
        said = answer.choices[0].message
        text, self.calls = said.content or "", len(said.tool_calls or [])
        for call in (said.tool_calls or [])[:1]:
            text += f'<tool_call>{{"name": {json.dumps(call.function.name)}, "arguments": {call.function.arguments}}}'
            text += "</tool_call>"
        return text


# an episode


def play(env: Any, model: Any, task: dict[str, Any]) -> dict[str, Any]:
    """One episode: the reward columns, their weighted sum and how it ended."""
    result = env.reset(**task)
    listed = ACTION.get("tools")
    if ACTION.get("discover"):
        listed = env.step(ACTION["discover"]).observation.get(listed)
    elif isinstance(listed, str):
        listed = result.observation.get(listed)
    tools = [plain_tool(tool) for tool in listed or []]
    named = ", ".join(tool["name"] for tool in tools)
    system = (
        re.sub(r"\{\{ *tools *\}\}", lambda _: named, AGENT.get("system", "")) if tools else AGENT.get("system", "")
    )
    messages = [{"role": "system", "content": system}] if system else []
    text, rows, understood, turns, ended = words_of(result.observation), [], 0, 0, "max_turns"
    while turns < EPISODE["max_turns"] and ended == "max_turns":
        turns += 1
        messages.append({"role": "user", "content": text})
        reply = model.reply(messages, tools)
        messages.append({"role": "assistant", "content": reply})
        try:
            result = env.step(action_of(reply))
            understood += 1
            rows.append(columns_of(result))
            text = "" if result.done else words_of(result.observation)
            ended = "done" if result.done else ended
        except (Unreadable, RuntimeError) as problem:
            if not isinstance(problem, Unreadable) and "VALIDATION_ERROR" not in str(problem):
                raise  # the environment failed, not the model
            message = AGENT.get("unparsable_message", "Your reply could not be read. {{ problem }}")
            text = render(message, problem=str(problem))
            ended = "unparsable" if AGENT.get("on_unparsable", "retry") == "end" else ended
        if model.calls > 1 and text:
            text += f"\n\nOnly the first of your {model.calls} calls was made. Call again what you still need."
    columns = fold(rows) | {"format": understood / max(turns, 1)}
    weights = {name: spec["weight"] if isinstance(spec, dict) else spec for name, spec in PROCTOR["rewards"].items()}
    reward = sum(weight * columns.get(name, 0.0) for name, weight in weights.items())
    shown = {name: columns.get(name, 0.0) for name in weights}
    return {"task": task, "reward": reward, "columns": shown, "turns": turns, "ended": ended, "messages": messages}


def plain_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """As OpenAI's endpoints want it; environments also use MCP's spelling."""
    tool = tool.get("function", tool)
    schema = tool.get("parameters") or tool.get("input_schema") or tool.get("inputSchema")
    empty = {"type": "object", "properties": {}}
    return {"name": tool["name"], "description": tool.get("description", ""), "parameters": schema or empty}


def columns_of(result: Any) -> dict[str, float]:
    """What this step earned, column by column; a package that sends none has the one column `reward`."""
    metadata = result.observation.get("metadata") or result.metadata or {}
    found: Any = {**result.observation, "metadata": metadata}
    for part in (PROCTOR.get("columns_from") or "metadata.rewards").split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, dict):
        return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
    return {"reward": float(result.reward or 0.0)}


def fold(rows: list[dict[str, float]]) -> dict[str, float]:
    """A column's steps add up, unless the manifest says `last` or `max`."""
    folded = {}
    for name in {name for row in rows for name in row}:
        spec = PROCTOR["rewards"].get(name)
        how = spec.get("over_episode", "sum") if isinstance(spec, dict) else "sum"
        values = [row[name] for row in rows if name in row]
        folded[name] = {"sum": sum, "last": lambda found: found[-1], "max": max}[how](values)
    return folded


# everything


@contextmanager
def server() -> Iterator[str]:
    """ENV_URL, or a server of our own for as long as it is needed."""
    if url := os.environ.get("ENV_URL"):
        yield url
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = MANIFEST.get("app", "server.app:app")
    command = [sys.executable, "-m", "uvicorn", app, "--port", str(port), "--log-level", "warning"]
    process = subprocess.Popen(command, cwd=HERE)
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def wait_until_healthy(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2).read()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    sys.exit("the environment's server did not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=5, help="how many episodes")
    parser.add_argument("--split", choices=["train", "heldout"], default="heldout")
    parser.add_argument("--first", type=int, default=0, help="number of the first task")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, with the transcript")
    options = parser.parse_args()
    model, results = Model(), []
    with server() as url, GenericEnvClient(base_url=url).sync() as env:
        for index in range(options.first, options.first + options.tasks):
            seed = index + (HELDOUT_SEED_BASE if options.split == "heldout" else 0)
            level = index % TASKS["levels"]
            task = {"seed": seed, "split": options.split, "level": level, "index": index}
            results.append(play(env, model, task))
            print(json.dumps(results[-1]) if options.json else line_of(results[-1]), flush=True)
    if not options.json and results:
        print(
            f"mean reward {sum(result['reward'] for result in results) / len(results):.3f} of {len(results)} episodes"
        )


def line_of(result: dict[str, Any]) -> str:
    columns = "  ".join(f"{name} {value:g}" for name, value in result["columns"].items())
    task = result["task"]
    told = f"{task['split']} {task['index']} level {task['level']}"
    return f"{told}: reward {result['reward']:.3f} in {result['turns']} turns ({result['ended']})  {columns}"


if __name__ == "__main__":
    main()
