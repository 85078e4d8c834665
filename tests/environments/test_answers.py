"""Answers derived from the right one: wrong ones differ, equal ones are declared, forms come from the prompt."""

import ast

import pytest

from backend.domain.environments.answers import (
    HALF_CHANGED,
    AnswerForm,
    answer_forms,
    changed_share,
    equal_answers,
    is_rounded,
    secret_values,
    wrong_answers,
)
from backend.domain.environments.programs import (
    program_mutants,
    prompt_examples,
    read_program,
    source_literals,
    wrong_programs,
)

SOLUTION = "def powers(n):\n    return [2**i for i in range(n) if n >> i & 1]\n"


def test_no_wrong_answer_is_the_right_one() -> None:
    for right, others in (("42", ["7"]), ("0", []), ("Paris", ["Rome", "paris"]), ("a: 1\nb: 2", ["a: 3\nb: 4"])):
        single = [variant.answers[0][0] for variant in wrong_answers(right, others) if len(variant.answers) == 1]
        assert single
        assert right not in single
        assert not [text for text in single if text.strip().casefold() == right.casefold()]


def test_numbers_are_bent_and_several_answers_come_in_every_order() -> None:
    variants = {variant.name: variant.answers for variant in wrong_answers("42", ["7"])}
    assert variants["off by one"] == (("43",),)
    assert variants["negated"] == (("-42",),)
    assert variants["two answers"] == (("42 or 7",), ("7 or 42",))
    assert variants["two replies in one"] == (("42", "7"), ("7", "42"))


def test_each_line_of_an_answer_must_count() -> None:
    names = {variant.name for variant in wrong_answers("ROOTS: 1, 2\nFINAL: 3", [])}
    assert {"line 1 changed", "line 2 changed", "without the last line"} <= names


@pytest.mark.parametrize(("answer", "is_denied"), [("1 0\n0 1", True), ("[1, 2]", True), ("yes", True), ("42", False)])
def test_a_denied_answer_is_tried_except_of_a_number(answer: str, is_denied: bool) -> None:
    denied = [each.answers[0][0] for each in wrong_answers(answer, []) if each.name == "denied"]
    assert denied == [f"not {answer}"] * is_denied


@pytest.mark.parametrize(
    ("near", "rounded"),
    [("2.221", True), ("2.2", True), ("2.25", False), ("-2.220", False), ("2.220 m", False), ("3", False)],
)
def test_only_decimals_may_differ_by_rounding(near: str, rounded: bool) -> None:
    assert is_rounded("2.220", near) is rounded
    assert is_rounded(f"['1.5', '{'2.220'}']", f"['1.5', '{near}']") is rounded
    assert not is_rounded("42", "43")
    assert not is_rounded("10000", "10001")
    assert is_rounded("0.001", "0.") is True


def test_a_decimal_that_is_clearly_wrong_is_tried() -> None:
    for right in ("2.220", "['1.5', '0.01']", "851737.58055369", "3.0e-05"):
        [far] = [v.answers[0][0] for v in wrong_answers(right, []) if v.name == "a decimal off by 5%"]
        assert not is_rounded(right, far)


def test_the_share_of_an_answer_that_changed() -> None:
    assert changed_share("abcdefghij", "abcdefghix") == pytest.approx(0.1)
    assert changed_share("[[0,1],[1,1]]", "[[0,1],[0,1]]") == pytest.approx(0.25)
    assert changed_share("same", "s a m e") == 0
    assert changed_share("a b c d", "a b") == pytest.approx(0.5)
    [half] = [v.answers[0][0] for v in wrong_answers("[0,1,9,1,1,0,0,0,0,1]", []) if v.name == HALF_CHANGED]
    assert half == "[1,1,8,1,2,0,1,0,1,1]"


def test_close_answers_are_skipped_where_another_answer_may_be_right() -> None:
    names = {variant.name for variant in wrong_answers("The bread stands by the hill.", [], is_only_one=False)}
    assert "no answer" in names
    assert not names & {"denied", "one part changed", "the first half", "two answers"}


def test_only_declared_variations_must_keep_the_reward() -> None:
    assert {variant.name for variant in equal_answers("b, a")} == {"blanks around it", "a line break after it"}
    free = {variant.answers[0][0] for variant in equal_answers("b, a", ["order", "case"], ["a and b"])}
    assert {"a, b", "B, A", "a and b"} <= free
    assert "1,234" in {variant.answers[0][0] for variant in equal_answers("1234", ["numbers"])}


def test_forms_follow_the_prompt() -> None:
    written = [form.write("7") for form in answer_forms("Put it in <result></result>, or write 'Total: <number>'.")]
    assert written[0] == "7"
    assert {"<result>7</result>", "Total: 7", "\\boxed{7}", "#### 7", '{"answer": 7}'} <= set(written)
    assert AnswerForm("call", '{"value": "\\u0000answer\\u0000"}', "integer").write("7") == '{"value": 7}'


def test_a_state_names_its_answer() -> None:
    state = {"expected_answer": "x", "target": [1, 2], "is_target": True, "answer": " ", "format": "y"}
    assert secret_values(state) == ["x", "1", "2"]


def test_wrong_programs_parse_and_know_the_examples_of_the_prompt() -> None:
    prompt = "`powers(1)` returns `[1]` and `powers(6)` returns `[2, 4]` (since 6 = 2 + 4)"
    program = read_program(f"```python\n{SOLUTION}```", prompt)
    assert program is not None
    assert prompt_examples(program, prompt) == [("(1,)", "[1]"), ("(6,)", "[2, 4]")]
    literals = source_literals({"server/grader.py": "if 'MAGIC_WORD' in code:\n    '''say \"it\"'''\n"})
    assert "MAGIC_WORD" in literals
    for variant in wrong_programs(program, prompt, literals):
        if variant.name != "does not parse":
            assert "powers" in variant.code or variant.name == "an empty program"
            ast.parse(variant.code)
    assert {ast.unparse(ast.parse(each.code)) for each in program_mutants(program)}.isdisjoint(
        {ast.unparse(ast.parse(SOLUTION))}
    )


@pytest.mark.parametrize("text", ["42", "def broken(:", "def ", "print('def ')", "x" * 200_000 + "def f(): pass"])
def test_other_answers_are_no_programs(text: str) -> None:
    assert read_program(text) is None
