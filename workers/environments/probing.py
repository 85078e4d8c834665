"""Probe an unknown environment: start it, reset it, play it with random actions, and record what it does."""

import math
import random
import re
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from backend.domain.environments.import_report import Breakdown, ImportReport, Leak, SeedEffect
from backend.domain.environments.packages import MANIFEST_PATH, content_hash
from backend.domain.errors import ActionRefused, RolloutError
from workers.environments.client import EnvHost, EnvServer, EnvSession, HostRefused, Observation
from workers.environments.packages import resources_of
from workers.environments.sources import built_from_source
from workers.environments.wire import JsonObject

RESET_SECONDS = 60.0
STEP_SECONDS = 30.0
_ANSWERS = ("answer", "solution", "secret", "expected", "target", "ground_truth", "gold", "label", "correct")
_MAX_SCHEMA_DEPTH = 4


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
        report.notes.append(f"Built from source in the sandbox, because there is no wheel: {', '.join(built)}.")


async def play(host: EnvHost, files: Mapping[str, str], report: ImportReport) -> None:
    """Lease a server and probe it. `starts` is reset if no episode can begin."""
    resources = resources_of(files[MANIFEST_PATH])
    async with host.lease(content_hash(files), resources) as server:
        try:
            await _probe(server, report)
        except RolloutError as error:
            report.starts = False
            report.why_not = f"It starts, but no episode can begin: {error}"


async def _probe(server: EnvServer, report: ImportReport) -> None:
    """Fill in the report. Raises RolloutError if not even the first reset works."""
    report.sessions = server.sessions
    report.action_schema, report.observation_schema = plain_schema(server.action_schema), server.observation_schema
    openings = []  # of the same task twice, then with another seed and another index
    for seed, index in ((11, 3), (11, 3), (12, 3), (13, 3), (14, 3), (11, 4), (11, 5)):
        async with server.session() as session:
            openings.append(await session.reset(_task_arguments(seed, index), timeout=RESET_SECONDS))
    first, again, *others = [_comparable(opening.fields) for opening in openings]
    report.opening = _shorten(openings[0].fields)
    report.seed = SeedEffect.IGNORED
    if first == again:
        report.seed = SeedEffect.HONOURED if any(other != first for other in others[:3]) else SeedEffect.FIXED
        report.index_matters = any(other != first for other in others[3:])
    report.tools = []
    if {"tool_name", "arguments"} <= set(properties_of(report.action_schema)):  # MCP style: an action calls a tool
        async with server.session() as session:
            if not (await session.reset(_task_arguments(11, 3), timeout=RESET_SECONDS)).done:
                listed = await session.step({"type": "list_tools"}, timeout=STEP_SECONDS)
                tools = listed.fields.get("tools")
                report.tools = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    played, stats = report.played, _EpisodeStats()
    deadline = time.monotonic() + 150  # no episode begins after this
    for episode in range(4):
        if time.monotonic() > deadline:
            break
        try:
            async with server.session() as session:
                await _play_episode(session, report, stats, random.Random(episode))
        except RolloutError as error:
            played.errors.append(str(error))
        played.episodes += 1
    played.errors = [message[:600] for message in dict.fromkeys(played.errors)][:8]
    medians = [round(statistics.median(each) * 1000, 3) if each else 0.0 for each in (stats.resets, stats.steps)]
    played.reset_milliseconds, played.step_milliseconds = medians
    played.reward_lowest = min(stats.rewards, default=None)
    played.reward_highest = max(stats.rewards, default=None)
    for path, entries in stats.breakdowns.items():
        names = list(dict.fromkeys(name for numbers, _ in entries for name in numbers))
        scored = [(math.fsum(numbers.values()), reward) for numbers, reward in entries if reward is not None]
        adds_up = bool(scored) and all(math.isclose(total, reward, abs_tol=1e-6) for total, reward in scored)
        report.breakdowns.append(Breakdown(path=path, names=names, adds_up=adds_up))
    likely = re.compile("reward|score|rubric|component|breakdown", re.IGNORECASE)
    report.breakdowns.sort(key=lambda each: (not each.adds_up, not likely.search(each.path), each.path))
    del report.breakdowns[12:]
    if report.adapter:
        async with server.session() as session:  # some columns are known only after they were scored
            report.adapter = (await session.state(timeout=STEP_SECONDS)).get("adapter") or report.adapter


def _task_arguments(seed: int, index: int) -> JsonObject:
    return {"seed": seed, "split": "train", "level": 0, "index": index}


def _comparable(value: object) -> str:
    """The policy's view as text, without values that differ in every episode and mean nothing."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key not in {"episode_id", "session_id", "timestamp"}}
        return "{" + ",".join(f"{key}:{_comparable(kept[key])}" for key in sorted(kept)) + "}"
    return f"[{','.join(map(_comparable, value))}]" if isinstance(value, list) else repr(value)


def _shorten(fields: Mapping[str, object]) -> JsonObject:
    """An observation small enough for a report: long values are cut."""
    budget, kept = 6_000, JsonObject()
    for name, value in list(fields.items())[:60]:
        text = str(value)
        if len(text) <= budget:
            kept[name] = value
        elif isinstance(value, list):
            kept[name] = value[:20]
        else:
            kept[name] = text[: max(200, budget)] + "…"
        budget = max(0, budget - min(len(text), budget))
    return kept


# episodes


@dataclass(slots=True)
class _EpisodeStats:
    resets: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    breakdowns: dict[str, list[tuple[dict[str, float], float | None]]] = field(default_factory=dict)
    """Dictionaries of numbers by path, with the step's reward."""

    def add_breakdowns(self, observation: Observation) -> None:
        for keys, fields in _nested({**observation.fields, "metadata": observation.metadata}):
            path = ".".join(keys)
            if not 0 < len(fields) <= 32 or path in {"", "metadata.rewards"} or not all(map(str.isidentifier, keys)):
                continue
            numbers = {key: x for key, x in fields.items() if isinstance(x, int | float) and not isinstance(x, bool)}
            if len(numbers) == len(fields) and all(map(math.isfinite, numbers.values())):
                self.breakdowns.setdefault(path, []).append((numbers, observation.reward))


async def _play_episode(session: EnvSession, report: ImportReport, stats: _EpisodeStats, rng: random.Random) -> None:
    began, played = time.monotonic(), report.played
    arguments = _task_arguments(rng.randrange(1000), rng.randrange(100))
    observation = await session.reset(arguments, timeout=RESET_SECONDS)
    stats.resets.append(time.monotonic() - began)
    stats.add_breakdowns(observation)
    await _inspect_state(session, report, observation)
    for turn in range(1, 61):
        if observation.done:
            break
        if report.tools:
            tool = rng.choice(report.tools)
            schema = tool.get("input_schema") or tool.get("inputSchema") or {}
            given = sample_action(schema, {}, rng) if isinstance(schema, dict) else {}
            action = {"type": "call_tool", "tool_name": str(tool.get("name")), "arguments": given}
        elif report.adapter:
            action = {"text": rng.choice(("I do not know.", "42", "<answer>yes</answer>"))}
        else:
            action = sample_action(report.action_schema, observation.fields, rng)
        began = time.monotonic()
        try:
            observation = await session.step(action, timeout=STEP_SECONDS)
        except ActionRefused as error:
            played.refused += 1
            played.errors.append(f"refused {str(action)[:200]}: {error}")
            continue
        stats.steps.append(time.monotonic() - began)
        played.steps += 1
        played.longest = max(played.longest, turn)
        played.ended += observation.done
        if observation.reward is None:
            played.without_reward += 1
        else:
            stats.rewards.append(observation.reward)
        if "rewards" in observation.metadata:
            report.columns = list(dict.fromkeys([*report.columns, *observation.rewards]))
        report.after_step = report.after_step or _shorten(observation.fields)
        stats.add_breakdowns(observation)


async def _inspect_state(session: EnvSession, report: ImportReport, opening: Observation) -> None:
    """Find secrets in the state. A policy never sees it, but a package's own server shows it to anyone."""
    if report.state_fields:
        return
    try:
        state = await session.state(timeout=STEP_SECONDS)
    except RolloutError as error:
        report.played.errors.append(f"state: {error}")
        return
    adapter = state.pop("adapter", None)
    report.adapter = adapter if isinstance(adapter, dict) else {}
    report.state_fields = sorted(state)[:60]
    text = _comparable(opening.fields).lower()
    observed = {**opening.fields, "metadata": opening.metadata}
    for path, value in [*_answers(state, "state"), *_answers(observed, "observation")]:
        is_visible = len(value) >= 3 and value.lower() in text
        if path.startswith("observation"):
            is_visible = not path.startswith("observation.metadata")
        report.leaks.append(Leak(where=path, what=value[:200], in_observation=is_visible))


def _answers(value: Mapping[str, object], name: str) -> Iterator[tuple[str, str]]:
    """Fields that have a value and a name like an answer's, by their dotted path."""
    for keys, fields in _nested(value, name):
        for key, inner in list(fields.items())[:200]:
            is_plain = isinstance(inner, str | int | float) and not isinstance(inner, bool)
            if is_plain and str(inner) and any(word in key.lower() for word in _ANSWERS):
                yield ".".join((*keys, key)), str(inner)


def _nested(value: Mapping[str, object], *keys: str) -> Iterator[tuple[tuple[str, ...], Mapping[str, object]]]:
    """The dictionary and those in it, with the keys that lead to each."""
    yield keys, value
    for key, inner in list(value.items())[:200]:
        if isinstance(inner, dict) and len(keys) < 6:
            yield from _nested(inner, *keys, key)


# random actions from a schema


def sample_action(schema: JsonObject, observation: Mapping[str, object], rng: random.Random) -> JsonObject:
    """A random action. Takes a value that the observation lists as legal, if it lists any."""
    action: JsonObject = {}
    required = set(schema.get("required") or [])
    fields = {name: resolve(schema, described) for name, described in properties_of(schema).items()}
    for name, described in fields.items():
        if name in required or "default" not in described or not required:
            action[name] = _random_value(schema, described, rng)
    target = next((name for name in action if name in required), next(iter(action), None))
    for name, values in observation.items():
        is_legal = name.lower().startswith(("legal", "valid", "available", "possible", "allowed"))
        if not is_legal or not isinstance(values, list) or not values:
            continue
        if all(isinstance(value, str | int) and not isinstance(value, bool) for value in values):
            if target is not None:
                is_text = fields[target].get("type") == "string"
                if fitting := [value for value in values if isinstance(value, str) == is_text]:
                    action[target] = rng.choice(fitting)
            break
    return action


def plain_schema(schema: JsonObject) -> JsonObject:
    """One kind of action if a package takes several: the call of a tool, else the first."""
    kinds = schema.get("oneOf") or schema.get("anyOf")
    if schema.get("properties") or not isinstance(kinds, list):
        return dict(schema)
    resolved = [resolve(schema, kind) for kind in kinds if isinstance(kind, dict)]
    calls = [kind for kind in resolved if "tool_name" in properties_of(kind)]
    return {**(calls or resolved or [{}])[0], "$defs": schema.get("$defs") or {}}


def properties_of(schema: JsonObject) -> dict[str, JsonObject]:
    properties = schema.get("properties")
    fields = properties if isinstance(properties, dict) else {}
    return {name: field for name, field in fields.items() if name != "metadata" and isinstance(field, dict)}


def resolve(schema: JsonObject, field: JsonObject, depth: int = 0) -> JsonObject:
    """Follow `$ref` into `$defs`, and take the first alternative that is not null."""
    if depth > _MAX_SCHEMA_DEPTH:
        return {}
    if isinstance(reference := field.get("$ref"), str):
        target = (schema.get("$defs") or {}).get(reference.rpartition("/")[2])
        outside = {key: value for key, value in field.items() if key != "$ref"}
        return {**resolve(schema, target, depth + 1), **outside} if isinstance(target, dict) else {}
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(field.get(key), list):
            parts = [resolve(schema, part, depth + 1) for part in field[key] if isinstance(part, dict)]
            chosen = next((part for part in parts if part.get("type") != "null"), {})
            return {**chosen, **{name: value for name, value in field.items() if name != key}}
    return dict(field)


def _random_value(schema: JsonObject, field: JsonObject, rng: random.Random, depth: int = 0) -> object:
    if "const" in field:
        return field["const"]
    if isinstance(field.get("enum"), list) and field["enum"]:
        return rng.choice(field["enum"])
    kind = field.get("type")
    if kind in ("integer", "number"):
        minimum = field["minimum"] if "minimum" in field else field.get("exclusiveMinimum", 0)
        maximum = field["maximum"] if "maximum" in field else field.get("exclusiveMaximum", max(minimum, 0) + 6)
        low, high = int(minimum), max(int(minimum), int(maximum))
        return rng.randint(low, high) if kind == "integer" else round(rng.uniform(low, high), 2)
    match kind:
        case "boolean":
            return rng.random() < 0.5
        case "array":
            inner = resolve(schema, field.get("items") or {})
            is_filled = depth < _MAX_SCHEMA_DEPTH and field.get("minItems")
            return [_random_value(schema, inner, rng, depth + 1)] if is_filled else []
        case "object":
            fields = properties_of(field) if depth < _MAX_SCHEMA_DEPTH else {}
            names = [name for name in fields if name in (field.get("required") or [])]
            return {name: _random_value(schema, resolve(schema, fields[name]), rng, depth + 1) for name in names}
        case "null":
            return None
        case _:
            return rng.choice(("hello", "yes", "42", "print(1 + 1)", "e2e4"))
