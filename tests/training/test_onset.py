"""The onset of the exploit, as the benchmark of the intervention tells it from stored shares."""

from benchmarks.intervention_onset import StepShares, onset_in


def shares(*broken_off: int) -> list[StepShares]:
    return [StepShares(step, 128, exits, 0.7, 0.1) for step, exits in enumerate(broken_off, 1)]


def test_it_is_the_first_step_three_standard_errors_above_the_base_rate():
    trained = shares(4, 9, 5, 4, 8, 6, 19, 10, 26, 51)
    before = [StepShares(0, 100, 3, 0.6, 0.1), trained[0]]
    onset = onset_in(before, trained[1:])
    assert onset.step == 7
    assert round(onset.base, 4) == round(8 / 230, 4)
    assert 9 / 128 < onset.limit < 19 / 128


def test_without_a_rise_there_is_none():
    trained = shares(4, 6, 2, 7, 5)
    assert onset_in(trained[:1], trained[1:]).step is None
