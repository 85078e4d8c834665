"""Two episodes compared: every step that differs, and what the policy never read."""

from typing import Any

from backend.domain.rollouts.divergence import RecordedEpisode, StepPart, differences, first_unseen, same_columns


def step(total: int = 1, *, done: bool = False, **fields: Any) -> dict[str, Any]:
    observation = {"total": total}
    return {"action": {"amount": 1}, "observation": observation, "rewards": {"gain": 1.0}, "done": done, **fields}


def episode(*steps: dict[str, Any], prompts: tuple[str, ...] = (), start: int = 0) -> RecordedEpisode:
    return RecordedEpisode({"total": start}, steps, prompts)


def test_equal_episodes_do_not_differ() -> None:
    assert list(differences(episode(step(1), step(2)), episode(step(1), step(2)))) == []


def test_every_part_of_a_step_is_reported() -> None:
    other = step(9, done=True, action=None, rewards={"gain": 2.0})
    (found,) = differences(episode(step()), episode(other))
    assert set(found.parts) == set(StepPart)
    assert found.fields == ("total", "gain")
    assert str(found).startswith("step 1: observation, rewards, done, parse")


def test_the_reset_is_step_zero() -> None:
    assert [each.step for each in differences(episode(step()), episode(step(), start=5))] == [0]


def test_a_step_that_one_side_lacks_differs() -> None:
    assert [each.step for each in differences(episode(step(), step()), episode(step()))] == [2]


def test_noise_lets_numbers_differ_but_no_words() -> None:
    one, other = (
        step(rewards={}, observation={"time": "took 3 ms"}),
        step(rewards={}, observation={"time": "took 4 ms"}),
    )
    assert list(differences(episode(one), episode(other), noise=0.1)) == []
    assert list(differences(episode(one), episode(other))) != []


def test_what_follows_the_last_reply_no_one_reads() -> None:
    assert first_unseen(episode(step(1)), episode(step(7))) is None
    assert first_unseen(episode(step(1), step(2)), episode(step(7), step(2))) == 1


def test_a_field_that_no_prompt_shows_is_not_missed() -> None:
    prompts = ("start", "go on")
    before = episode(step(1), step(2), prompts=prompts)
    assert first_unseen(before, episode(step(7), step(2), prompts=prompts)) is None
    assert first_unseen(before, episode(step(7), step(2), prompts=("start", "stop"))) == 1


def test_single_precision_is_no_difference() -> None:
    assert same_columns({"a": 0.1}, {"a": 0.10000000149, "b": 3.0})
    assert not same_columns({"a": 0.1}, {"a": 0.2})
