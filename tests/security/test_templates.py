"""Templates of users: nothing of them is evaluated but a bounded subset over plain data, with Jinja's own results."""

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from backend.domain.environments.manifest import ManifestInvalid, read_manifest
from backend.domain.environments.prompts import render_observation, render_unparsable
from backend.domain.graders.prompts import RolloutFacts, judge_prompt
from backend.domain.graders.settings import JudgeSettings
from backend.domain.templates import TemplateInvalid, parse_template
from backend.environments.library import load_package
from backend.environments.validation import validate_package

SECONDS = 0.2
"""How long a hostile template may take; measured as processor time, because the machine is shared."""

DATA: dict[str, Any] = {
    "message": "Your move, player <1> & 'co'.",
    "board": [["x", "o", ""], ["", "x", ""], ["o", "", "x"]],
    "score": 3.14159,
    "turn": 7,
    "over": False,
    "hint": None,
    "moves": [{"name": "up", "cost": 3}, {"name": "Down", "cost": 1}, {"name": "left", "cost": 2}],
    "inventory": {"sword": 1, "apple": 12, "Key": 3},
    "items": ["a", "b"],
    "text": "one two\nthree  four\n\nfive-six seven",
    "empty": [],
    "unicode": "Grüße 😀 ß",
    "result": {"data": "ok", "error": None},
}
LARGE = DATA | {"long": "ab " * 60_000, "numbers": list(range(2000)), "word": "x" * 2000}

REACHES_A_MODULE = "{{ 1 if (''|e).__class__.join.__globals__.t.sys.modules.tripwire.fired }}"
"""From there, an item of `ctypes.cdll` loads a shared library."""

HOSTILE = {
    "power": "{{ 9**9999999 }}",
    "power in a test": "{% if 9**9999999 %}x{% endif %}",
    "repetition": "{{ 'x' * 300000000 }}",
    "repeated list": "{{ [1] * 300000000 }}",
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "nested output": "{% for a in range(999) %}{% for b in range(999) %}{{ long }}{% endfor %}{% endfor %}",
    "ljust": "{{ 'x'.ljust(300000000) }}",
    "zfill": "{{ 'x'.zfill(300000000) }}",
    "center": "{{ 'x'|center(300000000) }}",
    "format": "{{ '%300000000d'|format(1) }}",
    "format with a star": "{{ '%*d'|format(300000000, 1) }}",
    "format digits": "{{ '%.300000000f'|format(1.0) }}",
    "percent": "{{ '%300000000d' % 1 }}",
    "str.format": "{{ '{:300000000}'.format(1) }}",
    "indent": "{{ 'x\n'|indent(300000000) }}",
    "tojson": "{{ numbers|tojson(indent=1000000000) }}",
    "batch": "{{ numbers|batch(1000000000, 1)|list }}",
    "slice": "{{ numbers|slice(1000000000)|list }}",
    "wordwrap": "{{ long|replace(' ', '')|wordwrap(1) }}",
    "lipsum": "{{ lipsum(n=100000) }}",
    "join": "{{ numbers|join(long) }}",
    "replace": "{{ long|replace('a', long) }}",
    "replace nothing": "{{ long.replace('', long) }}",
    "round": "{{ 5|round(-1000000000) }}",
    "round up": "{{ 5.5|round(1000000000, 'ceil') }}",
    "doubled list": "{% set a = [1] %}" + "{% set a = [a, a] %}" * 40 + "{{ a }}",
    "doubled mapping": "{% set a = {} %}" + "{% set a = {'a': a, 'b': a} %}" * 40 + "{{ a|tojson }}",
    "doubled text": "{% set a = word %}" + "{% set a = a ~ a %}" * 40,
    "squared": "{% set a = 3 %}" + "{% set a = a * a %}" * 60,
    "namespace": "{% set n = namespace(a=[1]) %}{% for i in range(999) %}{% set n.a = [n.a, n.a] %}{% endfor %}",
    "comparisons": "{% for i in range(90000) %}{% set a = long == long %}{% endfor %}",
    "searches": "{% for i in range(90000) %}{% if 'zz' in long %}{% endif %}{% endfor %}",
    "searches backwards": "{% for i in range(9000) %}{% set a = long.rfind('b' ~ word) %}{% endfor %}",
    "recursive macro": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for i in numbers recursive %}{{ loop(numbers) }}{% endfor %}",
    "nested blocks": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "short nested blocks": "{% if 1 %}" * 900 + "{% endif %}" * 900,
    "nested filters": "{% filter indent(90) %}" * 19 + "{{ long|replace(' ', '\n') }}" + "{% endfilter %}" * 19,
    "nested parentheses": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "nested lists": "{{ " + "[" * 9000 + " }}",
    "nested calls": "{{ " + "a(" * 3000 + ")" * 3000 + " }}",
    "20,000 terms": "{{ " + "+".join(["1"] * 20_000) + " }}",
    "1,500 terms": "{{ " + "+".join(["turn"] * 1500) + " }}",
    "chain of filters": "{{ message" + "|upper" * 1900 + " }}",
    "chain of attributes": "{{ message" + ".a" * 1900 + " }}",
    "chain of nots": "{{ " + "not " * 3000 + "1 }}",
    "chain of signs": "{{ " + "-" * 9000 + "1 }}",
    "chain of conditions": "{{ " + "1 if 1 else " * 900 + "1 }}",
    "huge integer": "{{ " + "9" * 15_000 + " }}",
    "huge hexadecimal": "{{ 0x" + "f" * 15_000 + " }}",
    "million characters": "{{ message }}" * 80_000,
    "unclosed comments": "{#" * 9000,
    "unclosed blocks": "{% raw %}" + "{% endraw" * 1500,
    "unclosed text": "{{ '" + "\\\\" * 9000 + " }}",
    "spaces": "{%-" + " " * 19_000,
    "class": "{{ message.__class__ }}",
    "class of a literal": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ observation.__init__.__globals__ }}",
    "attr": "{{ message|attr('__class__') }}",
    "attribute of map": "{{ numbers|map(attribute='__class__')|list }}",
    "item": "{{ message['__class__'] }}",
    "format string": "{{ '{0.__class__}'.format(message) }}",
    "self": "{{ self._TemplateReference__context }}",
    "function": "{{ range.__class__ }}",
    "cycler": "{{ cycler.__init__.__globals__ }}",
    "include": "{% include '/etc/passwd' %}",
    "extends": "{% extends '/etc/passwd' %}",
    "import": "{% import '/etc/passwd' as x %}",
    "block": "{% block a %}{% endblock %}",
    "mutation": "{{ observation.update({'x': 1}) }}",
    "append": "{{ numbers.append(1) }}",
    "surrogate": "{{ '\\ud800' }}",
    "null": "{{ '\\x00' }}",
}


@pytest.mark.parametrize("template", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_template_is_refused_within_200_ms_and_its_line_is_named(template: str):
    gc.freeze()  # what the process held before is not the template's to collect
    try:
        began = time.process_time()
        with pytest.raises(TemplateInvalid, match=r"^line 1: |^line 2: "):
            parse_template(template).render(LARGE | {"observation": LARGE})
        assert time.process_time() - began < SECONDS
    finally:
        gc.unfreeze()


def test_an_honest_template_next_to_them_renders():
    template = "{{ message|upper }} {% for i in range(3) %}{{ i }}{% endfor %}"
    assert render_observation(template, LARGE) == "YOUR MOVE, PLAYER <1> & 'CO'. 012"


def test_the_line_of_a_problem_is_named():
    with pytest.raises(TemplateInvalid, match=r"^line 3: operator"):
        parse_template("first\nsecond\n{{ 2 ** 3 }}")
    with pytest.raises(TemplateInvalid, match=r"^line 2: 'nothing' is undefined"):
        parse_template("first\n{% for a in nothing %}\n{% endfor %}").render({})


def with_observation(template: str) -> dict[str, str]:
    """The files of a package with this template."""
    files = load_package("tictactoe")
    described = yaml.safe_load(files["openenv.yaml"])
    described["proctor"]["agent"]["observation"] = template
    return {**files, "openenv.yaml": yaml.safe_dump(described)}


class Tripwire:
    """A module that knows whether one of its attributes was read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __getattr__(self, name: str) -> str:
        self.read.append(name)
        return name


def test_validating_a_package_runs_nothing_of_its_template(monkeypatch: pytest.MonkeyPatch):
    tripwire = Tripwire()
    monkeypatch.setitem(sys.modules, "tripwire", tripwire)
    assert validate_package(with_observation("{{ message }}")).is_publishable
    validate_package(with_observation(REACHES_A_MODULE))
    assert tripwire.read == []


@pytest.mark.parametrize("name", ["power", "nested parentheses", "20,000 terms", "class of a literal", "huge integer"])
def test_validating_a_package_with_a_hostile_template_ends_soon(name: str):
    files = with_observation(HOSTILE[name])
    validate_package(with_observation("{{ message }}"))
    began = time.process_time()
    validate_package(files)
    assert time.process_time() - began < 1.0


def test_a_problem_in_a_block_of_text_has_its_own_line_in_the_manifest():
    text = yaml.safe_dump(yaml.safe_load(load_package("tictactoe")["openenv.yaml"]))
    start = text.index("    observation:")
    end = text.index("\n", start)
    text = f"{text[:start]}    observation: |\n      first\n      second\n      {{{{ 2 ** 3 }}}}{text[end:]}"
    with pytest.raises(ManifestInvalid) as caught:
        read_manifest(text)
    [problem] = caught.value.problems
    assert "{{ 2 ** 3 }}" in text.splitlines()[problem.line - 1]
    assert "line 3" in problem.message


def test_a_judge_with_a_hostile_instruction_is_refused():
    with pytest.raises(ValueError, match="operator"):
        JudgeSettings(instruction="{{ answer }} {{ 9**9999999 }}")


def test_a_message_about_a_reply_that_does_not_render_is_an_error_with_a_message():
    assert render_unparsable("Again: {{ problem }}", "no tag") == "Again: no tag"
    with pytest.raises(ValueError, match="unparsable_message does not render: line 1"):
        render_unparsable("{{ problem.nothing }}", "no tag")


def test_only_data_that_an_instruction_names_is_shown_to_a_judge():
    facts = RolloutFacts([{"role": "user", "content": "why?"}, {"role": "assistant", "content": "because"}])
    judge = JudgeSettings(instruction="{{ answer|upper }}{% if prompt %}!{% endif %}")
    [_, asked] = judge_prompt(judge, facts).messages
    assert "THE BLOCK “ANSWER”!" in asked["content"]
    assert "why?" not in asked["content"]


# the same text as Jinja's


class Sandbox(ImmutableSandboxedEnvironment):
    """The rendering of templates before they had a bounded evaluator."""


JINJA = Sandbox(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=False)

SAME = [
    "{{ message }}",
    "{{ observation }}",
    "{{ observation | tojson }} {{ range(3) | list }}",
    "{{ observation|tojson(indent=2) }}",
    "{% if error is defined and error %}{{ error.message }}{% elif result is defined and result is mapping and "
    "result.data is defined %}{{ result.data }}{% else %}nothing{% endif %}",
    "{% for row in board %}{% for cell in row %}{{ cell or '.' }}{{ ' ' if not loop.last else '' }}{% endfor %}\n"
    "{% endfor %}",
    "{%- for m in moves -%}\n  {{ loop.index }}/{{ loop.length }} {{ m.name }} ({{ m['cost'] }})\n{% endfor -%}  end",
    "{% for k, v in inventory.items() %}{{ k }}={{ v }};{% else %}none{% endfor %}",
    "{% for k, v in inventory|dictsort %}"
    "{{ k }}={{ v }};{% endfor %}{% for k, v in inventory|items %}{{ k }}{% endfor %}",
    "{% for x in empty %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in moves if x.cost > 1 %}{{ loop.index0 }}{{ x.name }}{{ loop.first }}{{ loop.revindex }}{% endfor %}",
    "{% for x in moves %}{{ loop.cycle('a', 'b') }}{{ loop.previtem.name if not loop.first else '' }}"
    "{{ loop.nextitem.name if not loop.last else '' }}{{ loop.changed(x.cost > 1) }}{% endfor %}",
    "{% set total = namespace(n=0) %}{% for m in moves %}{% set total.n = total.n + m.cost %}{% endfor %}{{ total.n }}",
    "{% set y = 1 %}{% for i in range(3) %}{{ y }}{% set y = i %}{% endfor %}{{ y }}",
    "{% set a, b = (1, 2) %}{{ a + b }} {% set c %}{{ a }}!{% endset %}{{ c|upper }}",
    "{% set text2 | upper | trim %} abc {% endset %}[{{ text2 }}]",
    "{% filter upper %}{{ message }}{% endfilter %}{% filter trim|replace('A', 'b') %} A {% endfilter %}",
    "{% with a = 1, b = turn %}{{ a + b }}{% endwith %}",
    "{% raw %}{{ x }}{% endraw %}{# comment #}\n",
    "{{ score|round(2) }} {{ score|round(1, 'floor') }} {{ '%.2f'|format(score) }} "
    "{{ '%s of %03d'|format(hint, turn) }}",
    "{{ '%(a)s-%(b)5d|'|format(a=message, b=turn) }} {{ '100%%'|format }}",
    "{{ turn + 1 }} {{ turn - 1 }} {{ turn * 2 }} {{ turn / 2 }} {{ turn // 2 }} {{ turn % 2 }} "
    "{{ -turn }} {{ +turn }}",
    "{{ 1 < turn <= 7 }} {{ turn == 7 }} {{ turn != 7 }} {{ 'a' in items }} {{ 'z' not in items }} {{ 'ne' in text }}",
    "{{ not over and turn > 3 or hint }} {{ over or message }} {{ hint and 1 }}",
    "{{ 'yes' if over else 'no' }} {{ message ~ turn ~ hint ~ score }}",
    "{{ [1, 'a', none, true] }} {{ (1, 2) }} {{ {'a': [1]} }} {{ [] + [1] }} {{ 'a' + 'b' }}",
    "{{ text[1:4] }} {{ board[0][-1] }} {{ board[0] }} {{ text[::-1] }} {{ moves[:2]|length }} "
    "{{ observation['items'] }}",
    "{{ text|upper }} {{ text|lower }} {{ text|title }} {{ text|capitalize }} {{ text|length }} {{ text|wordcount }}",
    "{{ text|indent(2) }} {{ text|indent('> ', true) }} {{ text|indent(3, blank=true) }}",
    "{{ text|wordwrap(8) }} {{ text|truncate(9) }} {{ text|truncate(5, true, '…') }} {{ text|center(60) }}",
    "{{ text|trim }} {{ '--x--'|trim('-') }} {{ text|replace('o', '0') }} {{ text|replace('o', '0', 1) }}",
    "{{ text|reverse }} {{ items|reverse|list }} {{ items|first }} {{ items|last }} "
    "{{ items|join }} {{ items|join(', ') }}",
    "{{ moves|map(attribute='name')|join(', ') }} {{ items|map('upper')|list }} "
    "{{ moves|join(',', attribute='cost') }}",
    "{{ moves|map(attribute='nope', default='-')|list }}",
    "{{ moves|selectattr('cost', 'gt', 1)|map(attribute='name')|list }} {{ range(9)|select('odd')|list }}",
    "{{ moves|rejectattr('cost', 'eq', 1)|list }} {{ range(9)|reject('divisibleby', 3)|list }} {{ items|select|list }}",
    "{{ moves|sort(attribute='cost') }} {{ moves|sort(attribute='name') }} {{ [3, 1, 2]|sort(reverse=true) }}",
    "{{ moves|sort(attribute='name', case_sensitive=true) }} {{ moves|sum(attribute='cost') }} {{ [1, 2.5]|sum }}",
    "{{ moves|min(attribute='cost') }} {{ [3, 1]|max }} {{ ['b', 'A', 'B']|unique|list }}",
    "{% for cost, group in moves|groupby('cost') %}{{ cost }}:{{ group|length }} {% endfor %}",
    "{% for g in moves|groupby('name') %}{{ g.grouper }}{{ g.list }}{{ g }}{% endfor %}",
    "{{ range(7)|batch(3, 0)|list }} {{ range(7)|slice(3)|list }} {{ range(1, 9, 2)|list }} {{ range(3) }}",
    "{{ '7'|int + 1 }} {{ 'x'|int(-1) }} {{ '0x1f'|int(base=16) }} {{ '1.5'|float }} {{ -3|abs }} {{ 5|string ~ '!' }}",
    "{{ 1000000|filesizeformat }} {{ 1000000|filesizeformat(true) }}",
    "{{ nothing|default('none') }} {{ hint|default('none') }} {{ hint|d('none', true) }} {{ nothing is defined }}",
    "{{ hint is none }} {{ turn is odd }} {{ turn is divisibleby 7 }} {{ turn is number }} {{ text is string }}",
    "{{ moves is sequence }} {{ inventory is mapping }} {{ items is iterable }} "
    "{{ over is boolean }} {{ over is false }}",
    "{{ 3 is gt 2 }} {{ 'a' is in items }} {{ score is float }} {{ turn is integer }} "
    "{{ text is lower }} {{ 1 is eq 1 }}",
    "{{ message.upper() }} {{ message.split(' ')[0] }} {{ text.splitlines() }} {{ message.startswith('Your') }}",
    "{{ ', '.join(items) }} {{ inventory.get('sword', 0) }} {{ inventory.get('x') }} {{ inventory.keys()|list }}",
    "{{ message.replace('move', 'turn') }} {{ '7'.zfill(3) }} "
    "{{ 'a'.ljust(3) }}| {{ 'a'.center(5, '*') }} {{ text.find('t') }}",
    "{{ inventory.values()|sum }} {{ inventory.items() }} {{ [1, 1].count(1) }} {{ items.index('b') }}",
    "{{ unicode }} {{ unicode|upper }} {{ unicode|tojson }} {{ unicode|length }} {{ message|e }} {{ message|safe }}",
    "{{ 1_000 }} {{ 0x1f }} {{ 1.5e3 }} {{ 'a\\n\\u00e9' }} {{ \"it's\" }} {{ true }} {{ None }} {{ 10 // 3 }}",
    "[{{ 'x' if over }}]{% for a in ('x' if over) %}{% endfor %}{{ ('x' if over)|length }}",
    "a\r\nb\n{{ 1 }}\n\n",
    "{{ dict(a=1).a }} {{ {'a': {'b': 2}}.a.b }} {{ 'abc'|list }} {{ 'x' in {'x': 1} }}",
    "{{ 1 if nothing is defined else 2 }}{% if turn %}{% set seen = 1 %}{% endif %}{{ seen }}",
]


@pytest.mark.parametrize("template", SAME)
def test_a_template_renders_to_what_jinja_renders(template: str):
    given = DATA | {"observation": DATA}
    assert parse_template(template).render(given) == JINJA.from_string(template).render(given)


WRONG = [
    "{{ nothing }}",
    "{{ hint.x }}",
    "{{ result.nothing }}",
    "{{ board[9] }}",
    "{{ nothing + 1 }}",
    "{{ 1 / 0 }}",
    "{{ nothing.x }}",
    "{% for x in 5 %}{% endfor %}",
    "{{ 'a' < 1 }}",
    "{{ message + 1 }}",
    "{{ moves|join|int + hint }}",
    "{{ nothing|upper }}",
    "{% if nothing %}{% endif %}",
    "{{ nothing == 1 }}",
    "{{ x",
    "{% if %}",
    "{{ 1 1 }}",
    "{% for a, b in items %}{% endfor %}",
    "{{ turn|unknown }}",
    "{{ turn is unknown }}",
    "{% endfor %}",
    "{{ items.x }}",
    "{{ nothing in items }}",
    "{{ not nothing }}",
    "{{ moves|sort }}",
    "{{ empty|first }}",
]


@pytest.mark.parametrize("template", WRONG)
def test_what_jinja_refuses_is_refused(template: str):
    given = DATA | {"observation": DATA}
    with pytest.raises(Exception):  # noqa: B017, PT011 -- any: it is Jinja's own, for comparison
        JINJA.from_string(template).render(given)
    with pytest.raises(TemplateInvalid):
        parse_template(template).render(given)


LIBRARY = sorted(path for path in Path("workers/library").rglob("openenv.yaml"))


@pytest.mark.parametrize("path", LIBRARY, ids=[path.parent.name for path in LIBRARY])
def test_the_templates_of_the_library_render_to_what_jinja_renders(path: Path):
    agent = yaml.safe_load(path.read_text())["proctor"]["agent"]
    template = agent.get("observation", "{{ observation }}")
    given: dict[str, Any] = {name: f"<{name}> & “{name}”\n" * 40 for name in parse_template(template).names}
    given["observation"] = {"a": given, "b": [1, 2.5, None, True]}
    assert parse_template(template).render(given) == JINJA.from_string(template).render(given)
    told = agent.get("unparsable_message", "Your reply could not be read. {{ problem }}")
    assert render_unparsable(told, "no <tag>") == JINJA.from_string(told).render(problem="no <tag>")


def test_a_large_observation_is_cut_where_jinja_would_have_written_it():
    rows = {"rows": [{"n": n, "text": "x" * 50} for n in range(5000)]}
    template = "{% for row in rows %}{{ row.n }} {{ row.text }}\n{% endfor %}"
    text = render_observation(template, rows)
    assert text.startswith(JINJA.from_string(template).render(rows)[:200_000])
    assert "cut at 200,000 characters" in text
    assert json.dumps(text)
