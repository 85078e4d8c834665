"""Fixtures are read strictly; errors name the file."""

import json
from typing import Any

import pytest

from backend.domain.environments.fixtures import (
    Fixture,
    FixtureInvalid,
    FixtureKind,
    FixtureTask,
    read_fixture,
    read_fixtures,
    replace_column,
    undeclared_columns,
    write_fixture,
)
from backend.domain.environments.manifest import Manifest, read_manifest
from backend.domain.rollouts.rollout import task_of
from backend.domain.vocabulary import Split

GOOD: dict[str, Any] = {
    "note": "wins in three moves",
    "task": {"split": "heldout", "index": 3},
    "replies": ["<move>1</move>"],
    "columns": {"win": 1.0, "format": 1},
    "kind": "gold",
}


@pytest.fixture
def manifest() -> Manifest:
    return read_manifest(
        "name: small\nproctor:\n  agent: {action: {format: text, field: cell}}\n  rewards: {win: 1.0, format: 0.2}\n"
        "  tasks: {train: 10, heldout: 8, levels: 2}\n  episode: {max_turns: 2}\n"
    )


def _problem(change: dict[str, Any], path: str = "fixtures/won.json") -> str:
    with pytest.raises(FixtureInvalid) as caught:
        read_fixture(path, json.dumps({**GOOD, **change}))
    return str(caught.value)


def test_a_fixture_is_named_by_its_file() -> None:
    fixture = read_fixture("fixtures/won.json", json.dumps(GOOD))
    assert (fixture.name, fixture.kind, fixture.columns) == ("won", FixtureKind.GOLD, {"win": 1.0, "format": 1.0})
    assert fixture.task == FixtureTask(split=Split.HELDOUT, index=3)


def test_what_is_written_is_read_back() -> None:
    fixture = Fixture(name="won", replies=["α", ""], columns={"win": 0.5}, task=FixtureTask(index=1, seed=7))
    assert read_fixture(fixture.path, write_fixture(fixture)) == fixture


def test_the_task_follows_the_index_unless_a_seed_was_chosen(manifest: Manifest) -> None:
    assert task_of(manifest, *FixtureTask(index=3).model_dump().values()).reset_arguments() == {
        "seed": 10_000_003,
        "split": "heldout",
        "level": 1,
        "index": 3,
    }
    chosen = task_of(manifest, *FixtureTask(split=Split.TRAIN, index=0, seed=5, level=1).model_dump().values())
    assert (chosen.seed, chosen.level) == (5, 1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"coloumns": {}}, "coloumns: unknown key"),
        ({"name": "x"}, "name: unknown key"),
        ({"replies": []}, "replies: "),
        ({"replies": ["a", 3]}, "replies.1: "),
        ({"columns": {"win": "much"}}, "columns.win: "),
        ({"columns": {"win": float("nan")}}, "columns.win: "),
        ({"columns": {}, "kind": "scored"}, "a scored fixture names the columns"),
        ({"task": {"split": "test"}}, "task.split: "),
        ({"kind": "perfect"}, "kind: "),
    ],
)
def test_an_error_names_the_file_and_what_is_wrong(change: dict[str, Any], told: str) -> None:
    assert _problem(change).startswith("fixtures/won.json: ")
    assert told in _problem(change)


def test_a_name_is_a_plain_one() -> None:
    assert "fixtures/<lower_case_name>.json" in _problem({}, "fixtures/deep/won.json")
    assert "fixtures/<lower_case_name>.json" in _problem({}, "fixtures/Won it.json")


def test_broken_json_is_reported_with_its_line(manifest: Manifest) -> None:
    files = {"fixtures/a.json": '{\n  "replies": [}', "fixtures/README.md": "no fixture"}
    fixtures, [problem] = read_fixtures(files, manifest)
    assert not fixtures
    assert (problem.path, problem.line) == ("fixtures/a.json", 2)


def test_what_the_manifest_does_not_know_is_reported(manifest: Manifest) -> None:
    files = {
        "fixtures/a.json": json.dumps({**GOOD, "columns": {"lose": 1}}),
        "fixtures/b.json": json.dumps({**GOOD, "task": {"index": 8}}),
        "fixtures/c.json": json.dumps({**GOOD, "replies": ["1", "2", "3"]}),
        "fixtures/d.json": json.dumps(GOOD),
    }
    assert [f"{problem.path}: {problem.message}" for problem in read_fixtures(files, manifest)[1]] == [
        "fixtures/a.json: columns: the manifest declares no lose; it declares win, format",
        "fixtures/b.json: task.index: heldout has tasks 0 to 7",
        "fixtures/c.json: replies: 3, but an episode has 2 turns",
    ]


def test_an_undeclared_column_has_heirs_and_can_be_renamed_or_removed(manifest: Manifest) -> None:
    solved = json.dumps({**GOOD, "columns": {"solved": 1.0, "format": 1.0}})
    only = json.dumps({**GOOD, "columns": {"solved": 0.0}, "kind": "scored"})
    files = {"fixtures/a.json": solved, "fixtures/b.json": only, "fixtures/broken.json": "{", "README.md": "solved"}
    (found,) = undeclared_columns(files, manifest)
    assert (found.name, found.paths, found.heirs) == ("solved", ("fixtures/a.json", "fixtures/b.json"), ("win",))

    renamed = replace_column(files, "solved", "win")
    assert read_fixture("fixtures/a.json", renamed["fixtures/a.json"] or "").columns == {"win": 1.0, "format": 1.0}
    removed = replace_column(files, "solved")
    assert json.loads(removed["fixtures/a.json"] or "")["columns"] == {"format": 1.0}
    assert removed["fixtures/b.json"] is None  # it would state nothing
    assert renamed.keys() == removed.keys() == {"fixtures/a.json", "fixtures/b.json"}
