"""Thresholds of detectors for one run: texts of a configuration, over what the environment wants."""

import pytest
from pydantic import ValidationError

from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.settings import (
    DetectorChanges,
    DetectorSettings,
    Threshold,
    override_thresholds,
    resolve_settings,
)
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.steering import with_setting
from backend.training.schemas import resolve_configuration

BOTH = ["paid_exit.reward=0.6", "long_reply.factor=2"]


@pytest.mark.parametrize("given", [BOTH, "paid_exit.reward=0.6, long_reply.factor=2", [", ".join(BOTH)]])
def test_a_configuration_takes_them_as_a_list_or_a_text_and_writes_them_as_a_list(given: object) -> None:
    configuration = resolve_configuration(None, {"detectors": {"thresholds": given}})
    assert configuration.resolved()["detectors"]["thresholds"] == BOTH
    assert TrainingConfiguration.of_run(configuration.resolved()) == configuration


def test_they_may_change_between_steps_and_an_empty_value_takes_them_away() -> None:
    now = with_setting(TrainingConfiguration(), "detectors.thresholds", BOTH[0])
    assert [str(each) for each in now.detectors.thresholds] == BOTH[:1]
    assert with_setting(now, "detectors.thresholds", None).detectors.thresholds == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("paid_exit=0.6", "write a threshold as"),
        ("clairvoyance.reward=1", "no detector clairvoyance"),
        ("paid_exit.rewards=1", "it has turns, reward, suspicion"),
        ("paid_exit.suspicion=1.5", "from 0 to 1"),
        ("paid_exit.reward=nan", "finite"),
        ("paid_exit.reward=1, paid_exit.reward=2", "more than once: paid_exit.reward"),
    ],
)
def test_what_cannot_be_is_said(wrong: str, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        with_setting(TrainingConfiguration(), "detectors.thresholds", wrong)


def test_a_runs_own_go_over_its_environments() -> None:
    of_environment = {
        "paid_exit": resolve_settings(SPECS["paid_exit"], [DetectorSettings(thresholds={"turns": 0.3, "reward": 0.4})]),
        "tampering": resolve_settings(SPECS["tampering"]),
    }
    found = override_thresholds(of_environment, [Threshold.model_validate(BOTH[0])])
    assert found["paid_exit"].thresholds == {"turns": 0.3, "reward": 0.6, "suspicion": 0}
    assert found["tampering"] == of_environment["tampering"]


def test_every_detector_shows_all_it_suspects_by_default() -> None:
    assert {spec.thresholds["suspicion"] for spec in SPECS.values()} == {0.0}


def test_a_change_leaves_the_rest_and_null_is_the_default_again() -> None:
    known = DetectorSettings(enabled=False, thresholds={"turns": 0.3, "reward": 0.4})
    changes = DetectorChanges.model_validate({"thresholds": {"turns": None, "suspicion": 0.7}})
    assert changes.over(known) == DetectorSettings(enabled=False, thresholds={"reward": 0.4, "suspicion": 0.7})
    assert DetectorChanges.model_validate({"enabled": None}).over(known).enabled is None
