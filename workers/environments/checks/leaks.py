"""Does what the policy may see give the answer away?

An answer may stand in a prompt by chance (`12` in `5 + 12`). So each task's own answer is looked for, and answers of
other tasks as well: a leak is when the own one is there clearly more often.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from backend.domain.environments.prompts import parse_reply, render_observation
from backend.domain.rollouts.rollout import Rollout
from workers.environments.checks.base import Check, Finding, clipped, does_not_apply, failed, passed, warned
from workers.environments.checks.policies import IDLE
from workers.environments.checks.subject import Subject

TASKS = 64
OTHERS = 16
"""Answers of other tasks that each text is held against."""
WARNS, FAILS = 0.05, 0.2
"""How much more often the own answer stands there than those of others, as a share of the tasks."""
SECRETS = frozenset(
    {"answer", "answers", "correct_answer", "expected", "expected_output", "gold", "ground_truth"}
    | {"hidden", "label", "secret", "solution", "solutions", "target", "truth"}
)
"""Names in the state that say that this is what nobody may see."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A task, what must not be seen on it, and what can be seen."""

    key: str
    secrets: tuple[str, ...]
    prompts: tuple[str, ...]
    observations: tuple[str, ...]
    rollout: Rollout | None


async def _hidden(subject: Subject) -> Finding:
    cases = [case for case in await _cases(subject) if case.secrets]
    if not cases:
        return does_not_apply(
            "There is nothing to look for: the state names no `answer`, and gold needs more than one move."
        )
    for where, texts in (("prompt", [c.prompts for c in cases]), ("observation", [c.observations for c in cases])):
        own, others = _shares(cases, texts)
        excess = own - others
        told = (
            f"On {own:.0%} of {len(cases)} tasks the answer stands in the {where} before the episode ends, answers of"
            f" other tasks on {others:.0%}"
        )
        if excess < WARNS:
            continue
        if where == "prompt" and subject.manifest.proctor.checks.answer_in_prompt:
            return passed(f"{told}: by design (`checks.answer_in_prompt`).", own=own, others=others)
        if subject.manifest.proctor.checks.answer_in_prompt:
            continue
        shown = [case for case, found in zip(cases, texts, strict=True) if _holds(found, case.secrets)]
        rollouts = [case.rollout for case in shown if case.rollout]
        example = f"e.g. {clipped(shown[0].secrets[0])} on {shown[0].key}"
        judge = failed if excess >= FAILS else warned
        return judge(f"{told}, {example}.", rollouts, own=own, others=others)
    return passed(f"{len(cases)} tasks: neither prompts nor observations hold the answer more often than by chance.")


async def _cases(subject: Subject) -> list[_Case]:
    """The openings of some tasks, and what policies that found nothing out were shown on them."""
    gold = {r.task.key: r for r in await subject.completed("gold")} if "gold" in subject.scripts else {}
    idle: dict[str, list[Rollout]] = {}
    for policy in IDLE:
        for rollout in await subject.completed(policy):
            idle.setdefault(rollout.task.key, []).append(rollout)
    tasks = subject.tasks(max(2, TASKS // subject.levels))[: max(8, subject.replays(TASKS))]
    cases = []
    for task, (opening, state) in zip(tasks, await subject.openings(tasks, with_state=True), strict=True):
        played = idle.get(task.key, [])
        going_on = [step for rollout in played for step in rollout.steps if not step.done]
        first = render_observation(subject.manifest.proctor.agent.observation, opening.fields)
        metadata = {name: value for name, value in opening.metadata.items() if name != "rewards"}
        cases.append(
            _Case(
                task.key,
                tuple(secrets(state) or _single_answer(subject, gold.get(task.key))),
                (subject.manifest.proctor.agent.system, first, *(step.text for step in going_on)),
                (_text({**opening.fields, "_": metadata}), *(_text(step.observation) for step in going_on)),
                gold.get(task.key) or (played[0] if played else None),
            )
        )
    return cases


def secrets(state: Mapping[str, Any]) -> list[str]:
    """What the state itself calls the answer."""
    found = [value for name, value in state.items() if name.lower() in SECRETS]
    flat = [item for value in found for item in (value if isinstance(value, list) else [value])]
    return [str(item) for item in flat if _is_telling(item)]


def _is_telling(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and bool(str(value).strip())


def _single_answer(subject: Subject, gold: Rollout | None) -> list[str]:
    """Where one move is the whole episode, the gold move is the answer. A long one is looked for as a whole."""
    if gold is None or len(gold.steps) != 1:
        return []
    action = gold.steps[0].action or parse_reply(subject.manifest.proctor.agent.action, gold.steps[0].reply).action
    return [str(value) for value in (action or {}).values() if _is_telling(value)]


def _shares(cases: Sequence[_Case], texts: Sequence[Sequence[str]]) -> tuple[float, float]:
    """The share of tasks whose texts hold their own answer, and the mean share for answers that are not theirs."""
    own = sum(_holds(found, case.secrets) for case, found in zip(cases, texts, strict=True))
    tried = hits = 0
    for number, (case, found) in enumerate(zip(cases, texts, strict=True)):
        for step in range(1, OTHERS + 1):
            other = cases[(number + step * 7) % len(cases)]
            if set(other.secrets) & set(case.secrets):
                continue
            tried += 1
            hits += _holds(found, other.secrets)
    return own / len(cases), hits / tried if tried else 0.0


def _holds(texts: Sequence[str], secrets: Sequence[str]) -> bool:
    return any(_stands_in(secret, text) for text in texts for secret in secrets)


def _stands_in(secret: str, text: str) -> bool:
    """As words of their own, whatever the case and the blanks."""
    words = secret.split()
    if not words:
        return False
    pattern = r"\s+".join(re.escape(word) for word in words)
    return re.search(rf"(?<![\w.]){pattern}(?![\w]|\.\d)", text, re.IGNORECASE) is not None


def _text(fields: Mapping[str, Any]) -> str:
    return orjson.dumps(fields, default=str).decode()


HIDDEN = Check(
    "answer_hidden",
    "Neither the prompt nor an observation gives the answer away before the episode ends.",
    _hidden,
    needs=("steps_and_ends",),
)
