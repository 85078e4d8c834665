"""The benchmarks' list, docstrings and tables. Nothing is timed here."""

import ast
import importlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from backend.settings import PROJECT_ROOT
from benchmarks import __main__ as command
from benchmarks.harness import Measure, Options, as_json, print_table

FOLDER = PROJECT_ROOT / "benchmarks"
SHARED = {"__init__", "__main__", "harness", "peers", "bare_trl", "learned"}
"""Files that measure nothing themselves, or that need a folder of others: `learned` is a separate command."""


def test_every_benchmark_is_listed():
    assert {path.stem for path in FOLDER.glob("*.py")} == SHARED | set(command.BENCHMARKS)


IMPORTS_TORCH = {"ahead", "bare_trl", "decoding", "gpu", "training"}


def _marked(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in IMPORTS_TORCH)) for name in sorted(names)]


@pytest.mark.parametrize("name", _marked({*SHARED, *command.BENCHMARKS}))
def test_every_file_can_be_imported(name: str):
    importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize("name", _marked(command.BENCHMARKS))
def test_its_first_lines_name_the_peer_the_unit_and_the_repeats(name: str):
    module = importlib.import_module(f"benchmarks.{name}")
    text = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text())) or ""
    summary, _, rest = text.partition("\n\n")
    labels = re.findall(r"^(Peers?|Units?|Repeats): .", rest, re.MULTILINE)
    assert [label.rstrip("s") for label in labels] == ["Peer", "Unit", "Repeat"]
    assert summary == command.summary_of(name)
    assert re.match(r"Measure .*[.]$", summary), "one sentence in one line"
    assert re.search(rf"^Repeats: {module.REPEATS}\b", text, re.MULTILINE)
    assert callable(module.measure)


@pytest.mark.slow
def test_the_list_prints_a_line_for_each_benchmark():
    listed = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--list"], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True
    )
    lines = [f"{name:13} {command.summary_of(name)}" for name in command.BENCHMARKS]
    assert " ".join(listed.stdout.split()) == " ".join(" ".join(lines).split())


def test_an_unknown_benchmark_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "nonsense"])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert "unknown benchmark: nonsense. Choose from sandbox" in capsys.readouterr().err


def test_what_reads_third_party_collections_says_so_and_is_left_out_of_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    ran: list[str] = []
    monkeypatch.setattr(command, "_run_in_child", lambda name, options, checkout: ran.append(name))
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    command.main()
    assert set(command.BENCHMARKS) - set(ran) == command.NEED_DATA | command.ONLY_BY_NAME
    module = importlib.import_module("benchmarks.graders")
    with pytest.raises(SystemExit, match="--data FOLDER"):
        next(module.measure(Options(1)))


def test_a_ratio_pairs_the_repeats():
    measure = Measure("step", "s", [2.0, 3.0, 10.0], [1.0, 2.0, 4.0], target=2.5, target_ratio=2.0)
    assert measure.median == 3.0
    assert measure.ratio == 2.0
    assert measure.misses_target, "the median is over its target, though the ratio is not"


@pytest.mark.parametrize(
    ("value", "higher_is_better", "misses"), [(9.0, False, False), (11.0, False, True), (9.0, True, True)]
)
def test_a_target_is_a_bound_in_the_direction_of_the_measure(value: float, higher_is_better: bool, misses: bool):
    assert Measure("x", "s", [value], higher_is_better=higher_is_better, target=10.0).misses_target is misses


def test_the_table_shows_medians_ranges_ratios_and_missed_targets():
    console = Console(width=140, record=True, file=io.StringIO())
    print_table(console, "Measure steps.", [Measure("step", "s", [2.0, 3.0, 4.0], [1.0], target_ratio=2.0)])
    text = console.export_text()
    assert "Measure steps." in text
    assert "3.00 (2.00–4.00)" in text
    assert "3.00 ×" in text
    assert "≤ 2 × missed" in text


def test_a_row_without_values_states_why_nothing_was_measured():
    console = Console(width=140, record=True, file=io.StringIO())
    print_table(console, "Measure.", [Measure("QLoRA", "", (), note="skipped: needs a GPU; torch reaches none")])
    row = next(line for line in console.export_text().splitlines() if "QLoRA" in line)
    assert " ".join(row.split()) == "QLoRA skipped: needs a GPU; torch reaches none"


@pytest.mark.slow
def test_a_machine_without_a_gpu_names_each_part_that_it_skips(monkeypatch: pytest.MonkeyPatch):
    gpu = importlib.import_module("benchmarks.gpu")
    monkeypatch.setattr(gpu.torch.cuda, "device_count", lambda: 0)
    obstacles = {part.name: part.obstacle for part in gpu.PARTS}
    assert {name for name, obstacle in obstacles.items() if not obstacle} == {
        *("float32", "two processes", "two processes, FSDP2"),
    }
    assert obstacles["LoRA"] == "needs a GPU; torch reaches none"
    assert obstacles["vLLM, server"] == "needs 2 GPUs; torch reaches none"
    monkeypatch.setattr(gpu.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(gpu.torch.cuda, "is_bf16_supported", lambda: True)
    missing = next(part.obstacle for part in gpu.PARTS if part.name == "Unsloth, LoRA")
    assert missing == "unsloth is not installed: make gpu-proof WORKER=gpu-unsloth"
    for part in gpu.PARTS:
        choice = gpu.configuration_of(part, Options(1))
        assert choice.grpo.tasks_per_step % choice.hardware.processes == 0, part.name


def test_the_file_of_values_has_everything_that_a_comparison_needs():
    (row,) = json.loads(json.dumps(as_json([Measure("rate", "1/s", [1.0, 3.0], higher_is_better=True)])))
    assert {key: row[key] for key in ("name", "unit", "values", "higher_is_better", "median")} == {
        "name": "rate",
        "unit": "1/s",
        "values": [1.0, 3.0],
        "higher_is_better": True,
        "median": 2.0,
    }


def test_a_comparison_alternates_the_checkouts_and_reports_what_got_worse(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    calls = []

    def run(name: str, options: object, checkout: Path, *, is_silent: bool = False) -> command.Report:
        calls.append(checkout)
        seconds = 1.0 if checkout == tmp_path else 1.2
        rate = 100.0 if checkout == tmp_path else 97.0
        measures = [Measure("step", "s", [seconds]), Measure("rate", "1/s", [rate], higher_is_better=True)]
        return {"measures": as_json(measures), "missed": [], "seconds": 1.0}

    monkeypatch.setattr(command, "_run_in_child", run)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "sandbox", "--compare", str(tmp_path), "--rounds", "2"])
    assert command.main() == 1
    assert calls == [tmp_path, PROJECT_ROOT, PROJECT_ROOT, tmp_path]
    shown = " ".join(capsys.readouterr().out.split())
    assert "20% worse" in shown
    assert "measures that are worse by more than 5%: 1" in shown
