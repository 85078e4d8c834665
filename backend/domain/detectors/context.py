"""What detectors know of a run's environment: what can be earned, what counts as success, what the grader knows."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
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
    """What success is by it."""
    ranges: Ranges = field(default_factory=dict)
    """Declared by it."""


@dataclass(frozen=True, slots=True)
class EnvironmentContext:
    """Whatever is not known is left empty: the detectors that need it are silent."""

    columns: tuple[str, ...]
    weights: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    """The largest share of each column in the highest reward."""
    lowest: float | None = None
    highest: float | None = None
    success: SuccessRule | None = None
    rules: Mapping[str, SuccessRule] = field(default_factory=dict)
    """Of a run on several environments what success is in each, by its name. Only traps go by it: other figures of
    different environments say nothing together."""
    ranges: Mapping[str, Ranges] = field(default_factory=dict)
    """Declared ranges of the columns, by environment; under "" those of a run on one."""
    prompt: str = ""
    grader_words: frozenset[str] = frozenset()
    """Words of the reward's own code that are not in the prompt, in lower case."""
    base: Mapping[str, BaseTask] = field(default_factory=dict)
    """By task."""
    second: SecondVerifier | None = None
    """Who else judged rollouts of the run."""
    has_steps: bool = True
    """It is a training run. An evaluation comes in batches that are no steps."""


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


def with_base(context: EnvironmentContext, base: Mapping[str, BaseTask]) -> EnvironmentContext:
    return replace(context, base=base)


def words_of_grader(files: Mapping[str, str]) -> set[str]:
    """Texts in the reward columns' methods and in the lists of words that these methods read."""
    trees = [tree for path, text in files.items() if path.endswith(".py") and (tree := _parsed(text))]
    lists = dict(chain.from_iterable(_word_lists(tree) for tree in trees))
    found: set[str] = set()
    for method in chain.from_iterable(_column_methods(tree) for tree in trees):
        body = method.body[1:] if ast.get_docstring(method) else method.body
        for node in chain.from_iterable(map(ast.walk, body)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(_WORD.findall(node.value.lower()))
            elif isinstance(node, ast.Name):
                found |= lists.get(node.id, set())
    return found


def _column_methods(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            marks = {getattr(mark, "id", getattr(mark, "attr", "")) for mark in node.decorator_list}
            if "column" in marks:
                yield node


def _word_lists(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        texts = [each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)]
        words = {word for text in texts if isinstance(text, str) for word in _WORD.findall(text.lower())}
        if 0 < len(words) <= MOST_WORDS:
            yield node.targets[0].id, words


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
