"""The environment of a run as detectors know it: possible rewards, success, words of the grader."""

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from backend.domain.environments.manifest import Manifest
from backend.domain.environments.reward_bounds import Ranges, declared_ranges
from backend.domain.results.pass_at_k import SuccessRule, default_rule, possible_rewards

MOST_WORDS = 200
"""A longer list of words is the tasks' material and not the grader's."""
_WORD = re.compile(r"[a-z]{4,}")


@dataclass(frozen=True, slots=True)
class BaseTask:
    """Results of a base policy on one task."""

    plays: int
    passes: int


@dataclass(frozen=True, slots=True)
class SecondVerifier:
    """Another version of the reward, which judged the same rollouts."""

    name: str
    success: SuccessRule
    """Its success rule."""
    ranges: Ranges = field(default_factory=dict)
    """Its declared ranges."""


@dataclass(frozen=True, slots=True)
class EnvironmentContext:
    """Unknown values are empty; detectors that need them raise no flags."""

    columns: tuple[str, ...]
    weights: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    """The largest share of each column in the highest reward."""
    lowest: float | None = None
    highest: float | None = None
    success: SuccessRule | None = None
    rules: Mapping[str, SuccessRule] = field(default_factory=dict)
    """Runs on several environments only: the success rule of each, by its name. Only traps use them, because other
    figures cannot be compared across environments."""
    ranges: Mapping[str, Ranges] = field(default_factory=dict)
    """Declared ranges of the columns, by environment; under "" those of a run on one."""
    prompt: str = ""
    grader_words: frozenset[str] = frozenset()
    """Words of the reward's own code that are not in the prompt, in lower case."""
    base: Mapping[str, BaseTask] = field(default_factory=dict)
    """By task."""
    second: SecondVerifier | None = None
    """The other version that judged rollouts of the run."""
    has_steps: bool = True
    """True for training runs. Evaluations come in batches, which are not steps."""


def context_of(manifest: Manifest, files: Mapping[str, str], *, has_steps: bool = True) -> EnvironmentContext:
    columns = manifest.columns
    lowest, highest = possible_rewards(columns)
    bests = {column.name: abs(column.weight * (column.range or (0.0, 1.0))[1]) for column in columns}
    total = sum(bests.values()) or 1.0
    prompt = f"{manifest.proctor.agent.system}\n{manifest.proctor.agent.observation}"
    return EnvironmentContext(
        columns=tuple(manifest.column_names),
        weights={column.name: column.weight for column in columns},
        shares={name: best / total for name, best in bests.items()},
        lowest=lowest,
        highest=highest,
        success=default_rule(manifest),
        ranges={"": declared_ranges(manifest)},
        prompt=prompt,
        grader_words=frozenset(words_of_grader(files)) - frozenset(_WORD.findall(prompt.lower())),
        has_steps=has_steps,
    )


def words_of_grader(files: Mapping[str, str]) -> set[str]:
    """Return the words in the reward columns' methods and in the lists of words that these methods read."""
    lists: dict[str, set[str]] = {}
    methods: list[ast.FunctionDef] = []
    for path, text in files.items():
        tree = parse_python(text) if path.endswith(".py") else None
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.FunctionDef) and any(
                getattr(mark, "id", getattr(mark, "attr", "")) == "column" for mark in node.decorator_list
            ):
                methods.append(node)
        for statement in tree.body if tree else ():
            if isinstance(statement, ast.Assign) and isinstance(name := statement.targets[0], ast.Name):
                words = {word for node in ast.walk(statement.value) for word in _words(node)}
                if 0 < len(words) <= MOST_WORDS:
                    lists[name.id] = words
    found: set[str] = set()
    for method in methods:
        body = method.body[1:] if ast.get_docstring(method) else method.body
        for node in chain.from_iterable(map(ast.walk, body)):
            found |= lists.get(node.id, set()) if isinstance(node, ast.Name) else _words(node)
    return found


def _words(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return set(_WORD.findall(node.value.lower()))
    return set()


def parse_python(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
