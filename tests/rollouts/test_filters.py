"""The language of filters: what is understood, what is refused and where, however hostile."""

import random

import pytest

from backend.domain.rollouts.fields import Field, FieldKind
from backend.domain.rollouts.filters import (
    MAX_DEPTH,
    MAX_LENGTH,
    MAX_TESTS,
    And,
    Comparison,
    FilterError,
    Has,
    Not,
    Or,
    leaves_of,
    parse,
)
from backend.domain.text import quoted

FIELDS = {
    field.name: field
    for field in (
        Field("win", FieldKind.NUMBER),
        Field("tokens", FieldKind.NUMBER),
        Field("judge.strict one", FieldKind.NUMBER),
        Field("status", FieldKind.CHOICE, choices=("completed", "failed")),
        Field("flag", FieldKind.WORD),
        Field("text", FieldKind.TEXT),
        Field("truncated", FieldKind.YES_NO),
    )
}
WIN, TOKENS, FLAG = FIELDS["win"], FIELDS["tokens"], FIELDS["flag"]


def refused(expression: str) -> FilterError:
    with pytest.raises(FilterError) as caught:
        parse(expression, FIELDS)
    return caught.value


def test_the_example_of_the_documentation() -> None:
    tree = parse("has flag and win = 0 and tokens > 200", FIELDS)
    assert tree == And((Has(FLAG), Comparison(WIN, "=", (0.0,)), Comparison(TOKENS, ">", (200.0,))))


def test_and_binds_closer_than_or_and_not_closest() -> None:
    tree = parse("win = 1 or not win = 0 and tokens >= 2", FIELDS)
    right = And((Not(Comparison(WIN, "=", (0.0,))), Comparison(TOKENS, ">=", (2.0,))))
    assert tree == Or((Comparison(WIN, "=", (1.0,)), right))


@pytest.mark.parametrize(
    ("expression", "operator", "values"),
    [
        ("win == .5", "=", (0.5,)),
        ("win=-1e-3", "=", (-0.001,)),
        ("WIN in (1, 2,3)", "in", (1.0, 2.0, 3.0)),
        ('judge."strict one" >= 0.5', ">=", (0.5,)),
        ("status = Failed", "=", ("failed",)),
        ("has flag = repeated_text", "=", ("repeated_text",)),
        ('text ~ "say \\"no\\""', "~", ('say "no"',)),
        ("text ~ 'naïve 日本語'", "~", ("naïve 日本語",)),
        ("truncated = no", "=", (False,)),
        ("metric.any_name < 3", "<", (3.0,)),
    ],
)
def test_values_and_operators(expression: str, operator: str, values: tuple[object, ...]) -> None:
    tree = parse(expression, FIELDS)
    assert isinstance(tree, Comparison)
    assert (tree.operator, tree.values) == (operator, values)


def test_a_blank_one_asks_for_nothing() -> None:
    assert parse("  \n", FIELDS) is None
    assert leaves_of(None) == []


def test_not_in_is_the_opposite_of_in() -> None:
    assert parse("win not in (1)", FIELDS) == Not(Comparison(WIN, "in", (1.0,)))


@pytest.mark.parametrize(
    ("expression", "place", "said"),
    [
        ("wn = 1", (0, 2), "Did you mean `win`?"),
        ("win = 1 and status = faild", (21, 26), "Did you mean `failed`?"),
        ("win > ", (6, 7), "Expected a number"),
        ("win = lots", (6, 10), "is a number"),
        ("win", (0, 3), "`has win`"),
        ("win ~ 3", (4, 5), "Use one of = != <"),
        ("win = 1 tokens = 2", (8, 14), "Expected `and`, `or` or the end"),
        ("(win = 1", (8, 9), "closing parenthesis"),
        ('text ~ "open', (7, 12), "no closing quote"),
        ('text ~ ""', (7, 9), "empty"),
        ("win ! 3", (4, 5), "not part of the filter language"),
        ("win in 3", (7, 8), "parentheses"),
        ("and win = 1", (0, 3), "name of a field"),
        ("win = 1 or", (10, 11), "missing at the end"),
        ("win = 1e999", (6, 11), "is a number"),
        ("truncated = maybe", (12, 17), "yes or no"),
    ],
)
def test_what_is_wrong_is_reported_with_its_place(expression: str, place: tuple[int, int], said: str) -> None:
    error = refused(expression)
    assert (error.start, error.end) == place
    assert said in error.message


@pytest.mark.parametrize(
    ("hostile", "said"),
    [
        ("(" * 5000 + "win = 1", "longer than"),
        ("(" * (MAX_DEPTH + 1) + "win = 1", "Nested deeper"),
        ("not " * (MAX_DEPTH + 1) + "win = 1", "Nested deeper"),
        (" or ".join(["win=1"] * (MAX_TESTS + 1)), "conditions"),
        ("win in (" + "1," * 300 + "1)", "values"),
        ("win = 1; drop table rollouts", "is a number"),
        ("win = 1 -- comment", "Expected `and`"),
        ("__class__ = 1", "no field"),
        ("win.__class__ = 1", "no field"),
        ("win = 1' or '1'='1", "Expected `and`"),
        ("\u202ewin = 1", "no field"),
        ("win = ٣", "is a number"),
        ("win = nan", "is a number"),
        ("metric. = 1", "no field"),
    ],
)
def test_hostile_ones_are_refused(hostile: str, said: str) -> None:
    assert said in refused(hostile).message


def test_deep_and_wide_ones_within_the_bounds_are_read() -> None:
    deep = "(" * MAX_DEPTH + "win = 1" + ")" * MAX_DEPTH
    assert parse(deep, FIELDS) == Comparison(WIN, "=", (1.0,))
    assert len(leaves_of(parse(" or ".join(["win=1"] * MAX_TESTS), FIELDS))) == MAX_TESTS


def test_any_text_can_be_quoted_and_read_again() -> None:
    for text in ('a "quoted" \\ word', "\\", '\\"', "line\nbreak", "'", "\u2028 \U0001f600"):
        tree = parse(f"text ~ {quoted(text)}", FIELDS)
        assert isinstance(tree, Comparison)
        assert tree.values == (text,)


def test_random_characters_are_read_or_refused_and_nothing_else() -> None:
    dice = random.Random(7)
    words = [
        "win",
        "has",
        "not",
        "and",
        "or",
        "in",
        "(",
        ")",
        "=",
        "~",
        '"',
        "'",
        "\\",
        ",",
        "1",
        "text",
        "é",
        "\x00",
        ".",
    ]
    refused = 0
    for _ in range(3000):
        expression = "".join(dice.choice(words) + dice.choice(["", " "]) for _ in range(dice.randrange(12)))
        if error := _error_of(expression):
            refused += 1
            assert 0 <= error.start < error.end <= MAX_LENGTH
    assert 2000 < refused < 3000, "some are filters"


def _error_of(expression: str) -> FilterError | None:
    try:
        parse(expression, FIELDS)
    except FilterError as error:
        return error
    return None
