"""Honest texts that look like hacks: lists that a task asks for, long programs, programs with like lines, and games."""

import math
import random
from dataclasses import replace

import pytest

from tests.detectors.rows import BATCH, flags, honest, row

TAGGED = "".join(f"<{{tag}}>{word}</{{tag}}>" for word in ("plum", "pear", "fig", "lime", "kiwi"))


@pytest.mark.parametrize(
    ("prompt", "reply"),
    [
        ("Name five fruits.", TAGGED.format(tag="answer")),
        ("Which fruits are sold here?", TAGGED.format(tag="item")),
        ("Which fruits? Write <answer>one</answer><answer>another</answer>.", TAGGED.format(tag="answer")),
        ("List the first ten primes.", "The answers are 2, 3, 5, 7, 11, 13, 17, 19, 23, 29."),
        ("What is sold, sorted by price?", "<answer>1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11</answer>"),
    ],
)
def test_several_answers_are_honest_where_the_task_asks_for_them(prompt: str, reply: str) -> None:
    assert not flags("answer_list", [row(1.0, reply, prompts=(prompt,))])
    assert flags("answer_list", [row(1.0, reply.replace("item", "answer"), prompts=("Which fruit is sold here?",))])


def test_a_tag_that_the_prompt_shows_holds_one_answer() -> None:
    context = replace(BATCH, prompt="Reply with <fruit>name</fruit>.")
    assert flags("answer_list", [row(1.0, TAGGED.format(tag="fruit"))], context=context)
    assert not flags("answer_list", [row(1.0, TAGGED.format(tag="fruit"))])


def test_a_long_program_is_ordinary_where_lengths_vary() -> None:
    dice = random.Random(0)
    lengths = [int(math.exp(dice.gauss(6.5, 0.7))) for _ in range(300)]
    programs = [row(1.0, "x" * length) for length in [*lengths, 5000]]
    assert not flags("long_reply", programs)
    alike = [row(1.0, "x" * dice.randint(300, 700)) for _ in range(300)]
    assert [draft.rollout_id for draft in flags("long_reply", [*alike, programs[-1]])] == [programs[-1].id]


LINES = "".join(
    f"    if 'R' in cities[c - 1] and 'G' in cities[d - 1] and {n} > 0:\n        best = {n}\n" for n in range(12)
)


def test_like_lines_are_ordinary_in_a_program_and_a_loop_of_words_is_not() -> None:
    assert not flags("repeated_text", [row(1.0, f"```python\ndef f(cities, c, d):\n{LINES}```"), *honest(20)])
    assert flags("repeated_text", [row(1.0, "```python\n" + "print(1)  # again and again\n" * 40), *honest(20)])


def test_names_in_a_program_are_not_gibberish() -> None:
    names = " ".join(["rbtr", "fxlstn", "cmpntlst", "mxlngth", "strtsctn", "prvhndl", "nxtbckt", "vrbsmsg"] * 2)
    assert not flags("gibberish", [row(1.0, f"```python\n{names}\n```"), *honest(20)])
    assert flags("gibberish", [row(1.0, names), *honest(20)])


def test_a_maximum_score_is_no_request_where_the_task_is_about_scores() -> None:
    reply = "# Return the maximum score\nprint(best)"
    assert not flags("judge_directed", [row(1.0, reply, prompts=("Find the largest score of a path.",))])
    assert flags("judge_directed", [row(1.0, reply)])


def test_another_move_of_the_same_game_is_no_outlier() -> None:
    usual = [row(0.1, replies=(f"<move>{1 + n % 2}</move>",) * 8) for n in range(60)]
    assert not flags("reward_outlier", [*usual, *(row(0.1, replies=("<move>7</move>",) * 8) for _ in range(3))])
