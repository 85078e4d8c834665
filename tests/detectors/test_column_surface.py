"""Columns that reward the surface of texts are named; columns for content, success and declared form are not."""

import random
from dataclasses import replace

import pytest

from backend.domain.detectors.run_view import EnvironmentContext, RolloutRow, context_of
from backend.domain.environments.manifest import read_manifest
from backend.domain.environments.packages import MANIFEST_PATH
from backend.domain.results.pass_at_k import SuccessRule
from backend.environments.library import load_package
from tests.detectors.rows import flags, row
from tests.detectors.test_surface_reward import SUBJECTS, count, texts

COLUMNS = EnvironmentContext(
    ("facts", "style", "format"),
    weights={"facts": 1.0, "style": 0.5, "format": 0.1},
    lowest=0.0,
    highest=1.6,
    has_steps=False,
)
STUFFING = {
    "length": "There is more to say about this than one may think at first. ",
    "keywords": "This is robust and scalable. ",
    "structure": "\n## Part\n- **Point**: yes\n",
    "agreement": "What a great question! I completely agree. ",
    "hedging": "Perhaps it might possibly be so. ",
}
PROXIES = {
    "length": lambda text: min(1.0, len(text) / 1200),
    "keywords": count("robust|scalable", 12),
    "structure": count(r"(?m)^## |^- |\*\*", 16),
    "agreement": count("great|agree", 8),
    "hedging": count("perhaps|might|possibly", 15),
}


def written(family: str, seed: int = 5) -> list[RolloutRow]:
    """Texts that state facts, some of them stuffed, with a column for the facts and one for the surface."""
    dice = random.Random(seed)
    made = []
    for task, text, share in texts(90, seed):
        stuffed = text + STUFFING[family] * (dice.randint(1, 9) if dice.random() < 0.4 else 0)
        style = round(PROXIES[family](stuffed), 3)
        columns = {"facts": share, "style": style, "format": min(1.0, len(stuffed) / 500)}
        prompts = (f"Explain {SUBJECTS[task % 10]}.",)
        reward = share + 0.5 * style + 0.1 * columns["format"]
        made.append(row(reward, stuffed, task=f"train/{task}", columns=columns, prompts=prompts))
    return made


@pytest.mark.parametrize("family", STUFFING)
def test_the_column_that_rewards_surface_is_named_with_its_family(family: str) -> None:
    (found,) = flags("column_surface", written(family), context=COLUMNS)
    assert found.evidence["column"] == "style"
    first = found.evidence["returns"][0]
    assert first["family"] == family
    assert 0.5 <= first["low"] <= first["share"] <= first["high"] <= 1.0
    assert 0.1 < first["gain"] < 0.7
    assert f"`style` rewards {family}" in found.sentence


def test_declared_form_a_full_column_and_a_price_are_no_returns() -> None:
    rows = written("structure")
    declared = replace(COLUMNS, form_columns=COLUMNS.form_columns | {"style"})
    assert not flags("column_surface", rows, context=declared)
    full = [replace(each, columns={**each.columns, "style": 1.0}) for each in rows[:-5]] + rows[-5:]
    assert not flags("column_surface", full, context=COLUMNS)
    priced = replace(COLUMNS, weights={**COLUMNS.weights, "style": -0.5})
    assert not flags("column_surface", rows, context=priced)


def test_a_manifest_declares_columns_of_form() -> None:
    files = load_package("reverse_text")
    declared = read_manifest(files[MANIFEST_PATH].replace("exact: {weight", "exact: {form: true, weight"))
    assert context_of(declared, files).form_columns == {"format", "length", "exact"}


def test_longer_texts_that_succeed_more_often_are_no_return() -> None:
    """A column of partial success, and answers that are longer where they succeed."""
    context = replace(COLUMNS, columns=("win", "style"), weights={"win": 1, "style": 1}, success=SuccessRule("win", 1))
    dice = random.Random(3)
    rows = []
    for task, text, _ in texts(90, 3):
        won = dice.random() < 0.5
        reply = text + STUFFING["length"] * dice.randint(5, 9) * won
        columns = {"win": float(won), "style": won * 0.8 + dice.choice([0.0, 0.1, 0.2])}
        rows.append(row(sum(columns.values()), reply, task=f"train/{task}", columns=columns))
    assert not flags("column_surface", rows, context=context)


def test_hard_tasks_with_short_answers_are_no_return() -> None:
    dice = random.Random(4)
    rows = []
    for task, text, _ in texts(90, 4):
        reply = text + STUFFING["length"] * (task % 5)
        columns = {"facts": 0.0, "style": 0.2 * (task % 5) + dice.choice([0.0, 0.05])}
        rows.append(row(columns["style"], reply, task=f"train/{task}", columns=columns))
    assert not flags("column_surface", rows, context=COLUMNS)


def test_without_a_second_rollout_of_a_task_nothing_is_known() -> None:
    alone = [replace(each, task=f"train/{number}") for number, each in enumerate(written("hedging"))]
    assert not flags("column_surface", alone, context=COLUMNS)
