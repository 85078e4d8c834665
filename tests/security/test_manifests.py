"""Manifests and other files of packages: whatever is in them, reading ends soon and with a declared error."""

import ast
import json
import time

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.domain.environments.manifest import ManifestInvalid, read_manifest
from backend.domain.environments.packages import PackageInvalid, read_toml
from backend.domain.environments.tools import Tool, ToolsUnusable, read_tools
from backend.domain.rollouts.fields import Field, FieldKind
from backend.domain.rollouts.filters import FilterError, parse
from backend.domain.yaml_text import YamlInvalid, read_yaml
from backend.environments.library import load_package
from backend.environments.validation import fields_of, parse_python, validate_package
from workers.environments.packages import requirements_of, resources_of

SECONDS = 0.5
"""Of processor time, because the machine is shared."""
GOOD = load_package("tictactoe")["openenv.yaml"]

BOMBS = {
    "flow": "[" * 200_000,
    "mappings": "{a: " * 60_000,
    "sequences": "- " * 120_000,
    "keys": "? " * 120_000,
    "scalars": "a: [" + "a," * 350_000 + "]",
    "scalars within the limit": "a: [" + "a," * 120_000 + "]",
    "aliases": "a: &a x\nb: [" + "*a," * 80_000 + "]",
    "doubling": "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60)),
    "doubling by merging": "a0: &a0 {x: 1}\n"
    + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 60)),
    "itself": "a: &a [*a]",
    "documents": "---\n" * 60_000,
    "sexagesimal": "a: 1" + ":1" * 100_000,
    "digits": "a: " + "9" * 200_000,
    "hexadecimal": "a: 0x" + "f" * 200_000,
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_yaml_bomb_is_refused_soon(text: str):
    began = time.process_time()
    with pytest.raises(ManifestInvalid):
        read_manifest(text)
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_the_env_host_refuses_it_too(text: str):
    began = time.process_time()
    with pytest.raises(PackageInvalid):
        resources_of(text)
    assert time.process_time() - began < SECONDS


def test_an_honest_manifest_next_to_them_is_read():
    assert read_manifest(GOOD).name == "tictactoe"
    assert resources_of(GOOD).memory_mb >= 64


ODD = {
    "impossible date": "2001-99-99",
    "impossible time": "2001-01-01T99:99:99Z",
    "huge integer": "9" * 5000,
    "more than 64 bits": str(2**63),
    "hexadecimal": "0x" + "f" * 40,
    "infinity": ".inf",
    "negative infinity": "-.inf",
    "not a number": ".nan",
    "too large for a float": "1.0e+400",
    "integer of a text": "!!int abc",
    "empty integer": '!!int ""',
    "bool of a text": "!!bool maybe",
    "float of a text": "!!float abc",
    "bytes": "!!binary aGVsbG8=",
    "wrong bytes": "!!binary x",
    "set": "!!set {a, b}",
    "pairs": "!!pairs [a: b]",
    "ordered": "!!omap [a: b]",
    "date by its tag": "!!timestamp abc",
    "python": "!!python/object/apply:os.system [id]",
    "unknown tag": "!nothing x",
    "value tag": "=",
    "null character": '"\\0"',
    "surrogate": '"\\uD800"',
    "list as a key": "{[a]: b}",
    "mapping as a key": "{{a: b}: c}",
}
PLACES = {
    "a number": ("train: 10", lambda text, odd: text.replace("spec_version: 1", f"spec_version: {odd}")),
    "a text": ("description", lambda text, odd: f"{text}\nauthor: {odd}\n"),
    "any value": ("variables", lambda text, odd: f"{text}\nvariables: {{a: {odd}}}\n"),
    "a column": ("rewards", lambda text, odd: text.replace("  rewards:\n", f"  rewards:\n    odd: {odd}\n")),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_value_is_a_problem_or_read_and_never_an_uncaught_exception(odd: str, place: str):
    text = PLACES[place][1](GOOD, ODD[odd])
    assert text != GOOD
    try:
        stored = read_manifest(text).model_dump_json()
        lines = [1]
    except ManifestInvalid as invalid:
        stored, lines = "", [problem.line for problem in invalid.problems]
    assert not any(word in stored for word in ("NaN", "Infinity", "\\u0000", "\\ud800"))
    assert all(1 <= line <= text.count("\n") + 1 for line in lines)


def test_a_date_is_read_as_the_text_that_was_written():
    assert read_manifest(f"{GOOD}\nauthor: 2001-02-03\n").author == "2001-02-03"
    assert read_manifest(f"{GOOD}\nauthor: 2001-99-99\n").author == "2001-99-99"


def test_the_line_of_a_wrong_value_is_named():
    with pytest.raises(ManifestInvalid) as caught:
        read_manifest(f"{GOOD}\nport: {2**70}\n")
    [problem] = caught.value.problems
    assert problem.line == GOOD.count("\n") + 2
    assert "64 bits" in problem.message


@pytest.mark.slow
@given(st.text(max_size=300))
@settings(max_examples=100, deadline=None)
def test_no_text_breaks_the_reading_of_yaml(text: str):
    try:
        value = read_yaml(text)
    except YamlInvalid as error:
        value = str(error)
    json.dumps(value)  # plain values: a column of JSON can hold them


@pytest.mark.parametrize(
    "text", ["a: 1", "a: [1, 2.5, yes, null, 'x']", "a: &x {b: c}\nd: {<<: *x, e: f}", "", "- 1:30"]
)
def test_plain_values_are_read_as_pyyaml_reads_them(text: str):
    assert read_yaml(text) == yaml.safe_load(text)


TOML = {
    "dotted key": "a" + ".a" * 40_000 + " = 1",
    "dotted table": "[" + "a." * 40_000 + "a]",
    "lists": "a = " + "[" * 90_000,
    "tables": "a = " + "{a=" * 30_000,
    "digits": "a = " + "9" * 90_000,
    "long": "a = 1\n" * 200_000,
}


@pytest.mark.parametrize("text", TOML.values(), ids=TOML)
def test_a_hostile_pyproject_is_refused_soon(text: str):
    began = time.process_time()
    with pytest.raises(PackageInvalid):
        read_toml(text)
    with pytest.raises(PackageInvalid):
        requirements_of({"pyproject.toml": text})
    assert time.process_time() - began < SECONDS


def test_an_honest_pyproject_next_to_them_is_read():
    assert requirements_of({"pyproject.toml": '[project]\nname = "x"\ndependencies = ["numpy>=2"]\n'}) == ("numpy>=2",)


PYTHON = {
    "parentheses": "(" * 200_000,
    "signs": "-" * 190_000 + "1",
    "nots": "not " * 49_000 + "1",
    "attributes": "a" + ".a" * 90_000,
    "calls": "a" + "()" * 90_000,
    "sums": "1" + "+1" * 90_000,
    "digits": "9" * 190_000,
    "null character": "a = '\0'",
    "surrogate": "a = '\ud800'",
    "many files": "a;" * 90_000,
}


@pytest.mark.parametrize("text", PYTHON.values(), ids=PYTHON)
def test_hostile_python_is_parsed_or_refused_soon(text: str):
    files = {**load_package("tictactoe"), "a.py": text, **{f"b{i}.py": text for i in range(20)}}
    began = time.process_time()
    validate_package(files)
    assert time.process_time() - began < 5.0  # 40 files' worth of it would take a minute


def test_a_wrong_python_file_next_to_them_is_a_problem_with_its_line():
    problems = validate_package({**load_package("tictactoe"), "a.py": "x = 1\ny = (\n"}).problems
    assert [(problem.path, problem.line) for problem in problems] == [("a.py", 2)]


def test_classes_that_inherit_twice_are_followed_once():
    lines = ["class A0(Action):", "    cell: int"]
    lines += [f"class A{i}(A{i - 1}, A{i - 1}): pass" for i in range(1, 2000)]
    tree = parse_python("a.py", "\n".join(lines))
    began = time.process_time()
    assert fields_of({node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}, "Action") == {"cell"}
    assert time.process_time() - began < SECONDS


# tools


def tool(**schema: object) -> Tool:
    return Tool.model_validate({"name": "t", "parameters": {"type": "object", **schema}})


REGEX = {"patternProperties": {"^(a+)+$": {"type": "string"}}}
SCHEMAS = {
    "pattern": {"properties": {"x": {"pattern": "^(a+)+$"}}},
    "pattern of properties": REGEX,
    "pattern and additional": {**REGEX, "additionalProperties": False},
    "pattern and unevaluated": {**REGEX, "unevaluatedProperties": False},
    "no regular expression": {"patternProperties": {"(": {}}, "additionalProperties": False},
    "names": {"propertyNames": {"pattern": "^(a+)+$"}},
    "reference to itself": {"$ref": "#"},
    "unevaluated reference": {"$ref": "#", "unevaluatedProperties": False},
    "many errors": {"allOf": [{"properties": {"long": {"type": "integer"}}}] * 5000},
    "small divisor": {"properties": {"n": {"multipleOf": 1e-300}, "big": {"multipleOf": 0.5}}},
}
ARGUMENTS = {"x": "a" * 40 + "!", "a" * 40 + "!": 1, "long": "y" * 100_000, "n": 1e300, "big": 10**400}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_hostile_schema_of_a_tool_is_refused_or_checked_soon(schema: dict[str, object]):
    began = time.process_time()
    try:
        made = tool(**schema)
    except ValueError:
        return
    made.problem(ARGUMENTS)
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize(("levels", "is_usable"), [(32, True), (40, False), (300, False), (2000, False)])
def test_a_schema_is_nested_as_deep_as_arguments_may_be(levels: int, is_usable: bool):
    schema: dict[str, object] = {"type": "integer"}
    arguments: object = 1
    for _ in range(levels):
        schema, arguments = {"properties": {"a": schema}}, {"a": arguments}
    if is_usable:
        assert isinstance(arguments, dict)
        assert tool(**schema).problem(arguments) is None
    else:
        with pytest.raises(ValueError, match=r"nested more than 72 times|is not JSON"):
            tool(**schema)


def test_a_list_of_many_equal_objects_is_checked_soon():
    unique = tool(properties={"x": {"uniqueItems": True}})
    assert unique.problem({"x": [1, 2, 1]})
    assert unique.problem({"x": [{"a": 1}, {"a": 2}]}) is None
    assert unique.problem({"x": [{"a": 1}, {"a": 1}]})
    began = time.process_time()
    unique.problem({"x": [{"a": i} for i in range(20_000)]})
    assert time.process_time() - began < 2.0


def test_additional_properties_are_checked_where_no_pattern_decides():
    problem = tool(properties={"x": {}}, additionalProperties=False).problem({"y": 1})
    assert problem
    assert "'y'" in problem
    assert tool(patternProperties={"^x": {}}, additionalProperties=False).problem({"y": 1}) is None


@pytest.mark.parametrize("listed", ["[" * 900 + "]" * 900, "[{}]", '[{"name": "\\ud800"}]', "[[[]]]", "{}", "7"])
def test_a_hostile_list_of_tools_is_a_declared_error(listed: str):
    with pytest.raises(ToolsUnusable):
        read_tools(json.loads(listed))


# filters


FIELDS = {
    name: Field(name, kind, choices=("a", "b"))
    for name, kind in {"reward": FieldKind.NUMBER, "level": FieldKind.NUMBER, "text": FieldKind.TEXT}.items()
}


@pytest.mark.parametrize(
    "expression",
    [
        "not " * 400 + "reward > 1",
        "(" * 900 + "reward > 1" + ")" * 900,
        "reward = " + "9" * 1500,
        "reward > 1e999",
        'text ~ "' + "\\" * 1500,
        "level in (" + "1," * 900 + "1)",
        " " * 1990 + "x",
        'text ~ "a\0b"',
        'text ~ "a\ud800b"',
    ],
)
def test_a_hostile_filter_is_refused_soon(expression: str):
    began = time.process_time()
    with pytest.raises(FilterError):
        parse(expression, FIELDS)
    assert time.process_time() - began < SECONDS


def test_a_long_name_in_a_filter_is_read_soon():
    began = time.process_time()
    assert parse(f"metric.{'x' * 1900} > 1", FIELDS) is not None
    assert time.process_time() - began < SECONDS


def test_a_filter_never_holds_a_text_that_cannot_be_stored():
    for sign in ("\0", "\ud800"):
        with pytest.raises(FilterError, match="character"):
            parse(f'text ~ "a{sign}b"', FIELDS)
    assert parse('text ~ "ab"', FIELDS)
