"""`proctor data lessons`: conversations are uploaded, inspected, deleted and restored in the terminal."""

import json
from pathlib import Path

import pytest

from tests.ops.commands import Command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]


def written(folder: Path, *rows: object) -> str:
    path = folder / "games.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_file_goes_in_and_out_again(command: Command, tmp_path: Path) -> None:
    added = command("data", "lessons", "add", written(tmp_path, {"prompt": "Board?", "completion": "4"}), "--json")
    assert (added.status, added.json["conversations"]) == (0, 1)
    file_id = added.json["id"]
    assert [row["id"] for row in command("data", "lessons", "list", "--json").json] == [file_id]
    assert "Board?" in command("data", "lessons", "show", "games.jsonl").out
    chosen = ("--set", "sft.source=file", "--set", f"sft.file={file_id}")
    looked = command("data", "lessons", "preview", "tictactoe", *chosen)
    assert looked.status == 0
    assert "another system prompt" in looked.out
    assert "restore" in command("data", "lessons", "delete", file_id[-8:]).out
    assert command("data", "lessons", "list", "--json").json == []
    assert command("data", "lessons", "preview", "tictactoe", *chosen).status == 2
    assert command("data", "lessons", "restore", file_id, "--json").json["deleted_at"] is None


def test_a_wrong_line_ends_with_2(command: Command, tmp_path: Path) -> None:
    refused = command("data", "lessons", "add", written(tmp_path, {"prompt": "Board?"}))
    assert refused.status == 2
    assert "Line 1" in refused.err


def test_nothing_to_learn_from_ends_with_1(command: Command) -> None:
    chosen = ("--set", "sft.source=rollouts", "--set", "sft.where=reward > 1000")
    looked = command("data", "lessons", "preview", "tictactoe", *chosen, "--json")
    assert looked.status == 1
    assert looked.json["sources"][0]["available"] == 0
