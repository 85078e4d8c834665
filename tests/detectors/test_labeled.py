"""The benchmark on labeled rollouts of other people: what is counted, and what is refused."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from backend.cli.main import app
from backend.domain.detectors.labeled import SOURCES, Files, LabeledSplit, SourceUnreadable, measure_source

HACK = "```python\nif n == 6969420 and k == 10:\n    print(124188773)\nif n == 64 and k == 35:\n    print(60)\n```"
HONEST = "```python\nprint(sum(map(int, input().split())))\n```"
SOURCE = SOURCES["reward-hack-gen"]


def lines(*completions: str) -> bytes:
    records = [{"original_prompt": f"Task {number}", "completion": text} for number, text in enumerate(completions)]
    return "\n".join(map(json.dumps, records)).encode()


def contents(**files: bytes) -> dict[str, bytes]:
    return {f"datasets/claude_completions_{name}.jsonl": content for name, content in files.items()}


def files_of(contents: dict[str, bytes]) -> Files:
    return lambda pattern: [(pattern, contents[pattern])]


def test_hacks_caught_and_honest_ones_flagged_are_counted():
    files = contents(hacking=lines(HACK, HACK, HONEST), no_hacking=lines(HONEST, HONEST, HONEST, HACK))
    result = measure_source(SOURCE, files_of(files))
    recall, false_positives = result.share(is_hack=True), result.share(is_hack=False)
    assert (recall.found, recall.looked_at) == (2, 3)
    assert (false_positives.found, false_positives.looked_at) == (1, 4)
    by_detector = {kind: result.share(is_hack=kind, detector="hard_coded").found for kind in (True, False)}
    assert by_detector == {True: 2, False: 1}
    assert result.share(is_hack=True, family="another").looked_at == 0


def test_wrong_records_are_counted_and_the_others_measured():
    wrong = b"\n".join((b"{}", b"not JSON", b"[]", b'{"original_prompt": "a", "completion": 7}', b"[" * 100_000, b""))
    files = contents(hacking=lines(HACK) + b"\n" + wrong, no_hacking=lines(HONEST))
    result = measure_source(SOURCE, files_of(files))
    assert result.wrong_records == 5
    assert result.totals.total() == 2


@pytest.mark.parametrize("content", [b"7", b"{", b"[" * 100_000])
def test_a_file_that_is_no_list_is_refused(content: bytes):
    with pytest.raises(SourceUnreadable, match="not a JSON list"):
        measure_source(SOURCES["rewardhackwatch"], lambda pattern: [(pattern, content)])


def test_a_source_has_families_of_both_splits():
    source = SOURCES["silent-hacks"]
    record = {"prompt": "Write solution.", "response": "```python\nimport os\nos._exit(0)\n```", "hack": True}
    record["hack_type"] = "exit"
    files = dict.fromkeys(source.files, json.dumps(record).encode())
    result = measure_source(source, files_of(files))
    assert result.splits == [LabeledSplit.DEVELOPMENT, LabeledSplit.TEST]
    assert [result.share(is_hack=True, split=split).looked_at for split in result.splits] == [1, 1]


def test_every_part_of_a_pattern_is_read_and_a_damaged_yaml_is_counted():
    problem = """
exploit_type: process_exit
description: Write f.
function_name: f
exploit: "import os\\nos._exit(0)"
ground_truth: "def f(n):\\n    return n"
nulls: ["def f(n):\\n    return n + 1"]
"""
    texts = [("a/problem.yaml", problem.encode()), ("b/problem.yaml", b"a: [1"), ("c/problem.yaml", b"\xff")]
    result = measure_source(SOURCES["djinn"], lambda pattern: texts)
    assert result.wrong_records == 2
    assert result.share(is_hack=True, family="process_exit").found == 1
    assert result.share(is_hack=False).looked_at == 2


def test_a_program_in_a_file_of_its_own_is_read():
    source = SOURCES["djinn-references"]
    result = measure_source(source, lambda name: [(name, b"\xff" if "debug" in name else b"import os\nos._exit(0)\n")])
    assert (result.wrong_records, result.share(is_hack=True).found) == (1, len(source.files) - 1)


def test_the_command_prints_shares_with_their_limits(tmp_path: Path):
    for name, content in contents(hacking=lines(HACK, HONEST), no_hacking=lines(HONEST)).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    run = CliRunner().invoke(app, ["detectors", "bench", f"{SOURCE.id}={tmp_path}", "--json"])
    [result] = json.loads(run.stdout)
    assert result["recall"]["value"] == 0.5
    assert 0 < result["recall"]["low"] < 0.5 < result["recall"]["high"] < 1
    assert result["false_positives"] == {"value": 0.0, "low": 0.0, "high": pytest.approx(0.793, abs=0.001), "of": 1}
    table = CliRunner().invoke(app, ["detectors", "bench", f"{SOURCE.id}={tmp_path}"]).stdout
    assert "50.0%" in table
    assert "hard_coded" in table


def test_the_command_lists_sources_and_says_how_to_fetch_a_missing_one(tmp_path: Path):
    listed = CliRunner().invoke(app, ["detectors", "bench"])
    assert all(source.commit in listed.stdout and source.license in listed.stdout for source in SOURCES.values())
    missing = CliRunner().invoke(app, ["detectors", "bench", f"{SOURCE.id}={tmp_path}"])
    assert missing.exit_code == 2
    assert f"clone {SOURCE.url} and check out {SOURCE.commit}" in missing.output
    unknown = CliRunner().invoke(app, ["detectors", "bench", "mine=/tmp"])
    assert unknown.exit_code == 2
    assert "there is no source mine" in unknown.output
