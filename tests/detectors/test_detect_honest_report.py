"""What the benchmark of honest runs calls an accusation."""

import uuid

import pytest

from backend.domain.detectors.flags import FlagDraft
from backend.domain.vocabulary import Severity
from benchmarks.detectors_honest import Accused


def said(severity: Severity) -> FlagDraft:
    return FlagDraft("early_exit", "run", severity, 0.9, "More and more episodes are broken off.")


@pytest.mark.parametrize(
    ("severity", "faults"),
    [(Severity.NOTE, []), (Severity.WARNING, ["the run, by early_exit"]), (Severity.ALERT, ["the run, by early_exit"])],
)
def test_a_run_that_is_suspected_is_accused_though_no_rollout_is(severity: Severity, faults: list[str]):
    assert Accused(rollouts=1000, about_run=[said(severity)] * 2).faults == faults


@pytest.mark.parametrize(("flagged", "faults"), [(2, []), (3, ["more than 2% of the rollouts"])])
def test_a_run_of_which_too_many_rollouts_are_flagged_is_accused(flagged: int, faults: list[str]):
    assert Accused(rollouts=100, flagged={uuid.uuid4() for _ in range(flagged)}).faults == faults
