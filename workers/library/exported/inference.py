"""Let a language model play this environment: any endpoint that speaks OpenAI's chat completions.

    pip install -r server/requirements.txt && python inference.py --tasks 5

API_BASE_URL   the endpoint, e.g. http://localhost:8080/v1   (default: OpenAI's)
API_KEY        the key of API_BASE_URL. Default: OPENAI_API_KEY for api.openai.com, HF_TOKEN for huggingface.co,
               both over https only; other hosts get no key
MODEL_NAME     the model
ENV_URL        a running server of this environment          (default: one is started here)

openenv.yaml defines the prompts, how a reply becomes an action, and the reward.
"""

import argparse
import json
import os
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
from urllib.parse import urlsplit

import inference_words as words
from inference_words import ACTION, AGENT, MANIFEST, PROCTOR, Unreadable

HERE = Path(__file__).resolve().parent
EPISODE = {"max_turns": 8, "step_timeout_seconds": 10, "max_tokens_per_turn": 256, **PROCTOR.get("episode", {})}
TASKS = {"train": 1000, "heldout": 200, "levels": 1, **PROCTOR.get("tasks", {})}
HELDOUT_SEED_BASE = 10_000_000
START_SECONDS = 120
OPENAI_URL = "https://api.openai.com/v1"
KEYS = {"api.openai.com": "OPENAI_API_KEY", "huggingface.co": "HF_TOKEN"}
"""The variable with the key of a host and its subdomains."""


# the model


class Model:
    """Asks the endpoint. Tools, where this environment has some, are given by the endpoint's own means."""

    def __init__(self) -> None:
        self.name = os.environ.get("MODEL_NAME", "")
        if not self.name:
            sys.exit("set MODEL_NAME to the model that is to play")
        url = os.environ.get("API_BASE_URL") or OPENAI_URL
        key = key_for(url)
        from openai import OpenAI

        self.client = OpenAI(base_url=url, api_key=key, max_retries=4)

    def reply(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
        """`content`, with each call in the words of a call, `reasoning`, and whether it `is_cut`."""
        listed = [{"type": "function", "function": tool} for tool in tools]
        answer = self.client.chat.completions.create(
            model=self.name,
            messages=words.native(messages),
            max_tokens=EPISODE["max_tokens_per_turn"],
            temperature=float(os.environ.get("TEMPERATURE", "0")),
            **({"tools": listed} if listed else {}),
        )
        choice = answer.choices[0]
        said, apart = choice.message, choice.message.model_extra or {}
        calls = [words.write_call(call.function.name, call.function.arguments) for call in said.tool_calls or []]
        text = said.content or ""
        text = "\n".join([*([text.rstrip()] if text.strip() else []), *calls]) if calls else text
        reasoning = apart.get("reasoning_content") or apart.get("reasoning") or ""
        if not reasoning:
            reasoning, text = words.split_reasoning(text)
        return {"content": text, "reasoning": reasoning, "is_cut": choice.finish_reason == "length"}


def key_for(url: str) -> str:
    """The key that belongs to this endpoint. A provider's key goes to the provider alone, and never in the clear."""
    key = os.environ.get("API_KEY", "")
    if key and os.environ.get("API_BASE_URL"):
        return key
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    name = next((name for owner, name in KEYS.items() if host == owner or host.endswith(f".{owner}")), "")
    if not name or parts.scheme != "https":
        return "none"
    if key:
        sys.exit("set API_BASE_URL too: API_KEY is the key of that endpoint")
    return os.environ.get(name) or sys.exit(f"set {name}, the key of {host}, or API_BASE_URL and API_KEY")


# an episode


def play(env: Any, model: Any, task: dict[str, Any]) -> dict[str, Any]:
    """One episode: the reward columns, their weighted sum and how it ended."""
    return Episode(env, model).play(task)


class Episode:
    def __init__(self, env: Any, model: Any) -> None:
        self.env, self.model = env, model
        self.messages: list[dict[str, Any]] = []
        self.tools: list[dict[str, Any]] = []
        self.rows: list[dict[str, float]] = []
        self.left = EPISODE["max_turns"]
        """Each call that is made is a turn, however many a reply makes."""
        self.replies = self.understood = 0
        self.text, self.done = "", False
        self.results: list[str] = []
        """Of several calls of one reply, in their order."""

    def play(self, task: dict[str, Any]) -> dict[str, Any]:
        self.open(task)
        ended = None
        while ended is None and self.left > 0:
            ended = self.turn()
        columns = fold(self.rows) | {"format": self.understood / max(self.replies, 1)}
        weights = {
            name: spec["weight"] if isinstance(spec, dict) else spec for name, spec in PROCTOR["rewards"].items()
        }
        shown = {name: columns.get(name, 0.0) for name in weights}
        reward = sum(weight * shown[name] for name, weight in weights.items())
        told = {"task": task, "reward": reward, "columns": shown, "turns": self.replies}
        return {**told, "ended": ended or "max_turns", "messages": self.messages}

    def open(self, task: dict[str, Any]) -> None:
        result = self.env.reset(**task)
        if isinstance(ACTION.get("tools"), list):
            self.tools = [words.plain_tool(tool) for tool in ACTION["tools"]]
        self.see(result)
        if ACTION.get("discover"):
            self.look_for_tools(self.env.step(ACTION["discover"]))
        if system := words.system_of(self.tools):
            self.messages.append({"role": "system", "content": system})

    def see(self, result: Any) -> None:
        self.done = result.done
        self.text = "" if result.done else words.words_of(result.observation)
        self.look_for_tools(result)

    def look_for_tools(self, result: Any) -> None:
        name = ACTION.get("tools")
        if isinstance(name, str) and result.observation.get(name):
            self.tools = [words.plain_tool(tool) for tool in result.observation[name]]

    def turn(self) -> str | None:
        """Ask, and do what the reply says. How the episode ended, once it has."""
        self.messages.append(
            {"role": "user", "content": self.text, **({"results": self.results} if self.results else {})}
        )
        reply = self.model.reply(words.visible(self.messages), self.tools)
        reasoning = {"reasoning": reply["reasoning"]} if reply["reasoning"] else {}
        self.messages.append({"role": "assistant", "content": reply["content"], **reasoning})
        self.replies, self.results = self.replies + 1, []
        try:
            asked = words.asked_for(reply["content"], self.tools)
        except Unreadable as problem:
            asked = [problem]
        if len(asked) > 1 and any(isinstance(each, dict) for each in asked):
            return self.make_all(asked)
        self.left -= 1
        if isinstance(asked[0], dict):
            return self.make_one(asked[0], is_cut=reply["is_cut"], is_understood=True)
        if AGENT.get("on_unparsable") == "pass" and ACTION.get("field"):
            return self.make_one({ACTION["field"]: reply["content"]}, is_cut=reply["is_cut"], is_understood=False)
        return self.turn_down(" ".join(map(str, asked)), is_cut=reply["is_cut"])

    def make_one(self, action: dict[str, Any], *, is_cut: bool, is_understood: bool) -> str | None:
        try:
            self.make(action)
        except Unreadable as refusal:
            return self.turn_down(str(refusal), is_cut=is_cut)
        self.understood += is_understood
        return "done" if self.done else None

    def make_all(self, asked: list[dict[str, Any] | Unreadable]) -> str | None:
        """One call after the other, as far as the episode goes."""
        told, are_made = [], True
        for each in asked:
            name = each[ACTION["field"]] if isinstance(each, dict) else ""
            try:
                told.append((name, self.make_next(each)))
            except Unreadable as problem:
                told.append((name, str(problem)))
                are_made = False
        self.understood += are_made
        self.results = [text for _, text in told]
        self.text = "" if self.done else words.answers_in_words(told)
        return "done" if self.done else None

    def make_next(self, asked: dict[str, Any] | Unreadable) -> str:
        if isinstance(asked, Unreadable):
            raise asked
        if self.done or self.left <= 0:
            over = "the episode is over" if self.done else "the episode has no turn left"
            raise Unreadable(f"Not made: {over}.")
        self.left -= 1
        self.make(asked)
        return self.text

    def make(self, action: dict[str, Any]) -> None:
        """Raises Unreadable when the environment takes no such action; another error is the environment's own."""
        try:
            result = self.env.step(action)
        except RuntimeError as problem:
            if "VALIDATION_ERROR" in str(problem):
                raise Unreadable(str(problem)) from problem
            raise
        self.see(result)
        self.rows.append(columns_of(result))

    def turn_down(self, problem: str, *, is_cut: bool) -> str | None:
        message = AGENT.get("unparsable_message", "Your reply could not be read. {{ problem }}")
        self.text = words.render(message, problem=problem)
        if is_cut:  # asking again would only be cut again
            return "token_limit"
        return "unparsable" if AGENT.get("on_unparsable", "retry") == "end" else None


def columns_of(result: Any) -> dict[str, float]:
    """The reward of this step by column. A package that sends no columns has one column, `reward`."""
    metadata = result.observation.get("metadata") or result.metadata or {}
    found: Any = {**result.observation, "metadata": metadata}
    for part in (PROCTOR.get("columns_from") or "metadata.rewards").split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, dict):
        return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
    return {"reward": float(result.reward or 0.0)}


def fold(rows: list[dict[str, float]]) -> dict[str, float]:
    """Sum the steps of each column, unless the manifest declares `last` or `max`."""
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
    """ENV_URL, or a server that is started here and stopped afterward."""
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
        client_class()  # meanwhile
        wait_until_healthy(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def client_class() -> Any:
    """Importing it takes seconds."""
    from openenv import GenericEnvClient

    return GenericEnvClient


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
    with server() as url, client_class()(base_url=url).sync() as env:
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
