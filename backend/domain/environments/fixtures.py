"""Fixtures: transcripts in a package with the reward columns that they must earn, one file each, and judged episodes.

Reading `fixtures/<name>.json` never guesses: an error names the file and the problem.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field, ValidationError

from backend.domain.environments.blocks import ManifestBlock
from backend.domain.environments.manifest import FileProblem, Manifest
from backend.domain.rollouts.rollout import TaskSpec
from backend.domain.vocabulary import Split

FOLDER = "fixtures/"
SUFFIX = ".json"
MAX_FIXTURES = 100
ROUNDING = 1e-4
"""Stored rewards are single precision: a bound that is taken from one leaves this margin."""
MAX_REPLY = 100_000
"""Characters of one reply."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,59}")


class FixtureKind(StrEnum):
    """Conditions on a fixture beyond its columns."""

    SCORED = "scored"
    GOLD = "gold"
    """Its reward must also reach the bound that is declared for its level."""
    HACK = "hack"
    """Its reward must also stay at or below the floor."""


class FixtureInvalid(ValueError):
    """A file cannot be read as a fixture."""

    def __init__(self, problems: list[FileProblem]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{problem.path}: {problem.message}" for problem in problems))


class FixtureTask(ManifestBlock):
    """The task that the transcript was played on."""

    split: Split = Split.HELDOUT
    index: int = Field(default=0, ge=0)
    seed: int | None = Field(default=None, ge=0)
    """Only if chosen by hand; else it follows from the index."""
    level: int | None = Field(default=None, ge=0)


class Fixture(ManifestBlock):
    """Replies, played in order on a task, and the columns that the episode must end with."""

    name: str
    """The file's name without its suffix; not written into the file."""
    note: str = Field(default="", max_length=2000)
    """Its purpose, in a sentence."""
    task: FixtureTask = FixtureTask()
    replies: list[Annotated[str, Field(max_length=MAX_REPLY)]] = Field(min_length=1, max_length=1000)
    """As a model would write them."""
    columns: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)
    """Value over the episode by column; other columns are not compared."""
    kind: FixtureKind = FixtureKind.SCORED

    @property
    def path(self) -> str:
        return f"{FOLDER}{self.name}{SUFFIX}"


def exploit_fixture(attack: str, replies: Sequence[str]) -> str:
    """Return the name of an exploit's fixture. The same replies have the same name."""
    return f"red-team-{attack}-{hashlib.sha256(repr(list(replies)).encode()).hexdigest()[:10]}"


def is_fixture(path: str) -> bool:
    return path.startswith(FOLDER) and path.endswith(SUFFIX)


def read_fixture(path: str, text: str) -> Fixture:
    """Read one fixture. Raises FixtureInvalid with all problems of the file."""
    name = path.removeprefix(FOLDER).removesuffix(SUFFIX)
    if not is_fixture(path) or not _NAME.fullmatch(name):
        raise FixtureInvalid([FileProblem(path, 1, "a fixture's path is fixtures/<lower_case_name>.json")])
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise FixtureInvalid([FileProblem(path, error.lineno, f"not JSON: {error.msg}")]) from error
    except (ValueError, RecursionError) as error:
        raise FixtureInvalid([FileProblem(path, 1, f"not JSON: {error}")]) from error
    if not isinstance(raw, dict):
        raise FixtureInvalid([FileProblem(path, 1, 'a fixture is an object: {"task": …, "replies": …, "columns": …}')])
    if "name" in raw:
        raise FixtureInvalid([FileProblem(path, 1, "name: unknown key (the file's name is the fixture's name)")])
    try:
        fixture = Fixture.model_validate({**raw, "name": name})
    except ValidationError as error:
        problems = []
        for details in error.errors(include_url=False):
            where = ".".join(str(part) for part in details["loc"])
            message = {"extra_forbidden": "unknown key", "missing": "missing"}.get(details["type"]) or details["msg"]
            problems.append(FileProblem(path, 1, f"{where}: {message}"))
        raise FixtureInvalid(problems) from error
    if fixture.kind is FixtureKind.SCORED and not fixture.columns:
        raise FixtureInvalid([FileProblem(path, 1, "columns: a scored fixture names the columns that it must earn")])
    return fixture


def read_fixtures(files: Mapping[str, str], manifest: Manifest) -> tuple[list[Fixture], list[FileProblem]]:
    """Read all fixtures of a package by path, and list all their problems, including conflicts with its manifest."""
    fixtures: list[Fixture] = []
    problems: list[FileProblem] = []
    paths = sorted(path for path in files if is_fixture(path))
    if len(paths) > MAX_FIXTURES:
        problems.append(FileProblem(FOLDER, 1, f"{len(paths)} fixtures; a package has at most {MAX_FIXTURES}"))
    for path in paths[:MAX_FIXTURES]:
        try:
            fixtures.append(read_fixture(path, files[path]))
        except FixtureInvalid as invalid:
            problems += invalid.problems
    tasks, turns = manifest.proctor.tasks, manifest.proctor.episode.max_turns
    for fixture in fixtures:
        messages, task = [], fixture.task
        if unknown := [name for name in fixture.columns if name not in manifest.column_names]:
            declared = ", ".join(manifest.column_names)
            messages.append(f"columns: the manifest declares no {', '.join(unknown)}; it declares {declared}")
        count = tasks.heldout if task.split is Split.HELDOUT else tasks.train
        if task.index >= count:
            messages.append(f"task.index: {task.split} has tasks 0 to {count - 1}")
        if task.level is not None and task.level >= tasks.levels:
            messages.append(f"task.level: there are levels 0 to {tasks.levels - 1}")
        if len(fixture.replies) > turns:
            messages.append(f"replies: {len(fixture.replies)}, but an episode has {turns} turns")
        problems += [FileProblem(fixture.path, 1, message) for message in messages]
    return fixtures, problems


def write_fixture(fixture: Fixture) -> str:
    """Return the text of its file; the inverse of `read_fixture`."""
    return fixture.model_dump_json(exclude={"name"}, exclude_none=True, indent=2) + "\n"


@dataclass(frozen=True, slots=True)
class UndeclaredColumn:
    """A column that fixtures state and the manifest does not declare: it was renamed or removed there."""

    name: str
    paths: tuple[str, ...]
    """The fixtures."""
    heirs: tuple[str, ...]
    """Declared columns that none of these fixtures states: its new name may be among them."""


def undeclared_columns(files: Mapping[str, str], manifest: Manifest) -> list[UndeclaredColumn]:
    """Find such columns in the fixtures that can be read."""
    paths: dict[str, list[str]] = {}
    stated: dict[str, set[str]] = {}
    for path in sorted(path for path in files if is_fixture(path))[:MAX_FIXTURES]:
        try:
            columns = set(read_fixture(path, files[path]).columns)
        except FixtureInvalid:
            continue
        for name in sorted(columns.difference(manifest.column_names)):
            paths.setdefault(name, []).append(path)
            stated.setdefault(name, set()).update(columns)
    return [
        UndeclaredColumn(name, tuple(found), tuple(each for each in manifest.column_names if each not in stated[name]))
        for name, found in paths.items()
    ]


def replace_column(files: Mapping[str, str], name: str, heir: str = "") -> dict[str, str | None]:
    """Return the new texts of the fixtures that state the column: renamed, or without it.

    None: the fixture would state no column any more, so it is deleted.
    """
    changed: dict[str, str | None] = {}
    for path in sorted(path for path in files if is_fixture(path))[:MAX_FIXTURES]:
        try:
            fixture = read_fixture(path, files[path])
        except FixtureInvalid:
            continue
        if name not in fixture.columns:
            continue
        raw = json.loads(files[path])
        named = {heir if each == name else each: value for each, value in raw["columns"].items()}
        named.pop("", None)
        raw["columns"] = named
        is_empty = not named and fixture.kind is FixtureKind.SCORED
        changed[path] = None if is_empty else json.dumps(raw, indent=2, ensure_ascii=False) + "\n"
    return changed


@dataclass(frozen=True, slots=True)
class JudgedFixture:
    """An episode on which a person gave a verdict: the same actions must earn such a reward in every later version."""

    name: str
    judge: str
    """Author of the verdict that it derives from."""
    task: TaskSpec
    replies: Sequence[str]
    lowest: float | None
    """An honest episode must earn at least this."""
    highest: float | None
    """A hack must earn at most this."""

    @property
    def demand(self) -> str:
        if self.highest is not None:
            return f"at most {self.highest:.4g}"
        return f"at least {self.lowest:.4g}" if self.lowest is not None else "any reward"

    def is_met(self, reward: float, reach: float) -> bool:
        return (self.highest is None or reward <= self.highest + reach) and (
            self.lowest is None or reward >= self.lowest - reach
        )


def least_kept(reward: float) -> float:
    """The lower bound that an episode with this stored reward surely meets again."""
    return math.floor(reward / ROUNDING - 0.5) * ROUNDING
