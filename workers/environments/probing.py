"""Finding out what an unknown environment does: start it, reset it, play it at random, and look."""

import math
import random
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

from backend.domain.environments.import_report import Breakdown, Honour, ImportReport, Leak, Played
from backend.domain.environments.packages import MANIFEST_PATH, content_hash
from backend.domain.errors import ActionRefused, RolloutError
from workers.environments.client import EnvHost, EnvServer, EnvSession, HostRefused, Observation
from workers.environments.packages import resources_of
from workers.environments.sample_actions import plain_schema, properties_of, sample_action
from workers.environments.sources import built_from_source

RESET_SECONDS = 60.0
STEP_SECONDS = 30.0
EPISODES = 4
STEPS = 60
"""Per episode, at most."""
WHOLE_SECONDS = 150.0
"""After so long no further episode is begun."""
MAX_KEPT_CHARACTERS = 6_000
"""Of one observation that the report shows."""
_ANSWERS = ("answer", "solution", "secret", "expected", "target", "ground_truth", "gold", "label", "correct")
_LIST_TOOLS = {"type": "list_tools"}


async def start(host: EnvHost, files: Mapping[str, str], report: ImportReport) -> None:
    """Prepare the package and start it once. Failures of the package are recorded in the report."""
    began, digest = time.monotonic(), content_hash(files)
    try:
        await host.prepare(digest, files)
    except HostRefused as error:
        report.why_not = str(error)
        return
    report.starts = True
    report.start_seconds = round(time.monotonic() - began, 2)
    log, report.own_environment = await host.build_log(digest)
    if built := built_from_source(log):
        report.notes.append(f"Built from source, in the sandbox, for lack of a wheel: {', '.join(built)}.")


async def play(host: EnvHost, files: Mapping[str, str], report: ImportReport) -> None:
    """Lease a server and probe it. `starts` is reset if no episode can begin."""
    resources = resources_of(files[MANIFEST_PATH])
    async with host.lease(content_hash(files), resources) as server:
        try:
            await probe(server, report)
        except RolloutError as error:
            report.starts = False
            report.why_not = f"It starts, but no episode can begin: {error}"


async def probe(server: EnvServer, report: ImportReport) -> None:
    """Fill in what can be seen. Raises RolloutError when not even the first reset works."""
    report.sessions = server.sessions
    report.action_schema, report.observation_schema = plain_schema(server.action_schema), server.observation_schema
    await _look_at_resets(server, report)
    report.tools = await _tools(server) if is_tool_calling(report.action_schema) else []
    await _play(server, report)
    if report.adapter:
        async with server.session() as session:  # some columns are heard of only when they were scored
            report.adapter = (await session.state(timeout=STEP_SECONDS)).get("adapter") or report.adapter


def is_tool_calling(schema: Mapping[str, Any]) -> bool:
    """An MCP-style package: its action is the call of a tool."""
    return {"tool_name", "arguments"} <= set(properties_of(schema))


def task_arguments(seed: int, index: int) -> dict[str, Any]:
    """Arguments with which the platform resets episodes."""
    return {"seed": seed, "split": "train", "level": 0, "index": index}


# resets


async def _look_at_resets(server: EnvServer, report: ImportReport) -> None:
    """The same task twice, another seed, another number."""
    first, opening = await _reset(server, 11, 3)
    again, _ = await _reset(server, 11, 3)
    others = [(await _reset(server, seed, 3))[0] for seed in (12, 13, 14)]
    numbers = [(await _reset(server, 11, index))[0] for index in (4, 5)]
    report.opening = shortened(opening.fields)
    if first != again:
        report.seed = Honour.IGNORED
    else:
        report.seed = Honour.HONOURED if any(other != first for other in others) else Honour.FIXED
        report.index_matters = any(number != first for number in numbers)


async def _reset(server: EnvServer, seed: int, index: int) -> tuple[str, Observation]:
    """The policy's view in a comparable form, and the whole answer."""
    async with server.session() as session:
        observation = await session.reset(task_arguments(seed, index), timeout=RESET_SECONDS)
        return _comparable(observation.fields), observation


def _comparable(value: Any) -> str:
    """Without what differs in every episode and says nothing."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key not in {"episode_id", "session_id", "timestamp"}}
        return "{" + ",".join(f"{key}:{_comparable(kept[key])}" for key in sorted(kept)) + "}"
    return f"[{','.join(map(_comparable, value))}]" if isinstance(value, list) else repr(value)


async def _tools(server: EnvServer) -> list[dict[str, Any]]:
    async with server.session() as session:
        if (await session.reset(task_arguments(11, 3), timeout=RESET_SECONDS)).done:
            return []  # it is over before it began: what it needs is not there
        listed = await session.step(_LIST_TOOLS, timeout=STEP_SECONDS)
    found = listed.fields.get("tools")
    return [tool for tool in found if isinstance(tool, dict)] if isinstance(found, list) else []


# episodes


class _Notes:
    """Measurements over all episodes."""

    def __init__(self) -> None:
        self.resets: list[float] = []
        self.steps: list[float] = []
        self.rewards: list[float] = []
        self.seen: dict[str, list[tuple[dict[str, float], float | None]]] = {}
        """Dictionaries of numbers by path, with the step's reward."""

    def look(self, observation: Observation) -> None:
        everything = {**observation.fields, "metadata": observation.metadata}
        for path, numbers in dictionaries_of_numbers(everything):
            self.seen.setdefault(path, []).append((numbers, observation.reward))


async def _play(server: EnvServer, report: ImportReport) -> None:
    played, notes = report.played, _Notes()
    deadline = time.monotonic() + WHOLE_SECONDS
    for episode in range(EPISODES):
        if time.monotonic() > deadline:
            break
        try:
            async with server.session() as session:
                await _episode(session, report, notes, random.Random(episode))
        except RolloutError as error:
            _remember(played, str(error))
        played.episodes += 1
    played.reset_milliseconds = _middle(notes.resets)
    played.step_milliseconds = _middle(notes.steps)
    played.reward_lowest = min(notes.rewards, default=None)
    played.reward_highest = max(notes.rewards, default=None)
    report.breakdowns = _breakdowns(notes)


async def _episode(session: EnvSession, report: ImportReport, notes: _Notes, chance: random.Random) -> None:
    started = time.monotonic()
    observation = await session.reset(
        task_arguments(chance.randrange(1000), chance.randrange(100)), timeout=RESET_SECONDS
    )
    notes.resets.append(time.monotonic() - started)
    notes.look(observation)
    await _look_at_state(session, report, observation)
    for turn in range(1, STEPS + 1):
        if observation.done:
            break
        action = _action(report, observation.fields, chance)
        started = time.monotonic()
        try:
            observation = await session.step(action, timeout=STEP_SECONDS)
        except ActionRefused as error:
            report.played.refused += 1
            _remember(report.played, f"refused {_short(action)}: {error}")
            continue
        notes.steps.append(time.monotonic() - started)
        _record(report, notes, observation, turn)


def _record(report: ImportReport, notes: _Notes, observation: Observation, turn: int) -> None:
    played = report.played
    played.steps += 1
    played.longest = max(played.longest, turn)
    played.ended += observation.done
    if observation.reward is None:
        played.without_reward += 1
    else:
        notes.rewards.append(observation.reward)
    if "rewards" in observation.metadata:
        report.columns = list(dict.fromkeys([*report.columns, *observation.rewards]))
    report.after_step = report.after_step or shortened(observation.fields)
    notes.look(observation)


def _action(report: ImportReport, observation: Mapping[str, Any], chance: random.Random) -> dict[str, Any]:
    if report.tools:
        tool = chance.choice(report.tools)
        schema = tool.get("input_schema") or tool.get("inputSchema") or {}
        arguments = sample_action(schema, {}, chance) if isinstance(schema, dict) else {}
        return {"type": "call_tool", "tool_name": str(tool.get("name")), "arguments": arguments}
    if report.adapter:
        return {"text": chance.choice(("I do not know.", "42", "<answer>yes</answer>"))}
    return sample_action(report.action_schema, observation, chance)


async def _look_at_state(session: EnvSession, report: ImportReport, opening: Observation) -> None:
    """Secrets in the state. A policy never sees it, but a package's own server shows it to anyone."""
    if report.state_fields:
        return
    try:
        state = await session.state(timeout=STEP_SECONDS)
    except RolloutError as error:
        _remember(report.played, f"state: {error}")
        return
    adapter = state.pop("adapter", None)
    report.adapter = adapter if isinstance(adapter, dict) else {}
    report.state_fields = sorted(state)[:60]
    told = _comparable(opening.fields).lower()
    for path, value in _answers(state, "state"):
        given_away = len(value) >= 3 and value.lower() in told
        report.leaks.append(Leak(where=path, what=value[:200], in_observation=given_away))
    for path, value in _answers({**opening.fields, "metadata": opening.metadata}, "observation"):
        report.leaks.append(
            Leak(where=path, what=value[:200], in_observation=not path.startswith("observation.metadata"))
        )


def _answers(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Fields that are called like an answer and have a value."""
    if depth > 5 or not isinstance(value, dict):
        return
    for key, inner in list(value.items())[:200]:
        here = f"{path}.{key}"
        names_answer = any(word in str(key).lower() for word in _ANSWERS)
        if names_answer and isinstance(inner, str | int | float) and not isinstance(inner, bool) and str(inner):
            yield here, str(inner)
        elif isinstance(inner, dict):
            yield from _answers(inner, here, depth + 1)


# columns


def dictionaries_of_numbers(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, dict[str, float]]]:
    """Every dictionary in an observation that holds nothing but finite numbers, by its dotted path."""
    if not isinstance(value, dict) or depth > 4:
        return
    if path and path != "metadata.rewards" and value and len(value) <= 32 and all(map(_is_number, value.values())):
        yield path, {str(key): float(number) for key, number in value.items()}
    for key, inner in value.items():
        if isinstance(inner, dict) and str(key).isidentifier():
            yield from dictionaries_of_numbers(inner, f"{path}.{key}" if path else str(key), depth + 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _breakdowns(notes: _Notes) -> list[Breakdown]:
    """Candidates for the reward's components, most likely first."""
    found = []
    for path, entries in notes.seen.items():
        names = list(dict.fromkeys(name for numbers, _ in entries for name in numbers))
        scored = [(math.fsum(numbers.values()), reward) for numbers, reward in entries if reward is not None]
        adds_up = bool(scored) and all(math.isclose(total, reward, abs_tol=1e-6) for total, reward in scored)
        found.append(Breakdown(path=path, names=names, adds_up=adds_up))
    likely = ("reward", "score", "rubric", "component", "breakdown")
    found.sort(
        key=lambda entry: (not entry.adds_up, not any(word in entry.path.lower() for word in likely), entry.path)
    )
    return found[:12]


def _remember(played: Played, message: str) -> None:
    if message not in played.errors and len(played.errors) < 8:
        played.errors.append(message[:600])


def _middle(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1000, 3) if seconds else 0.0


def _short(value: Any) -> str:
    return str(value)[:200]


def shortened(fields: Mapping[str, Any]) -> dict[str, Any]:
    """An observation small enough for a report: long values are cut."""
    budget = MAX_KEPT_CHARACTERS
    kept: dict[str, Any] = {}
    for name, value in list(fields.items())[:60]:
        text = str(value)
        if len(text) <= budget:
            kept[name] = value
        elif isinstance(value, str):
            kept[name] = value[: max(200, budget)] + "…"
        elif isinstance(value, list):
            kept[name] = value[:20]
        else:
            kept[name] = text[: max(200, budget)] + "…"
        budget = max(0, budget - min(len(text), budget))
    return kept
