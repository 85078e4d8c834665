"""`proctor sweep`: a file starts a sweep, options override it, and mistakes are named."""

from pathlib import Path

import pytest

from tests.ops.commands import Command, proctor, server
from tests.sweeps.worlds import REASON

__all__ = ["proctor", "server"]

pytestmark = pytest.mark.slow

FILE = """
environment: tictactoe
name: rates
configuration:
  grpo: {steps: 40}
parameters:
  grpo.learning_rate: {low: 1e-5, high: 1e-3, log: true}
  grpo.group_size: [4, 8]
trials: 6
"""


def test_a_file_starts_a_sweep(proctor: Command, tmp_path: Path) -> None:
    file = tmp_path / "rates.yaml"
    file.write_text(FILE)
    refused = proctor("sweep", "start", str(file), "--set", "grpo.steps=0", "--no-wait")
    assert (refused.status, "grpo.steps" in refused.err) == (2, True)
    ask = ("--trials", "3", "--set", "grpo.steps=20", "--without-certificate", REASON, "--no-wait", "--json")
    sweep = proctor("sweep", "start", str(file), *ask).json
    assert (sweep["status"], sweep["total"]) == ("queued", 3)
    assert sweep["configuration"]["grpo"]["steps"] == 20
    assert sweep["parameters"]["grpo.learning_rate"]["low"] == 1e-5
    assert "rates" in proctor("sweep", "list").out
    assert "0 of 3 ended" in proctor("sweep", "show", "rates").out
    assert proctor("sweep", "stop", "rates", "--json").json["status"] == "stopped"
    assert proctor("sweep", "stop", "rates").status == 2
    assert proctor("sweep", "resume", "rates").status == 0
    proctor("sweep", "stop", "rates")


def test_mistakes_in_a_file_are_named(proctor: Command, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    for text, words in (
        ("[1, 2]", "a sweep is a mapping"),
        ("parameters: {grpo.beta: [0]}", "name the environment"),
        (FILE + "pruner: best", "pruner"),
        (FILE + "speed: 9", "speed"),
        (FILE.replace("group_size", "group_sise"), "grpo.group_size"),
        ("a: [", "neither YAML nor JSON"),
    ):
        file.write_text(text)
        refused = proctor("sweep", "start", str(file), "--no-wait")
        assert (refused.status, words in refused.err) == (2, True), refused.err
