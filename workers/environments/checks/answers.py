"""Which reply is right where the package has no `gold` script: the recorded answer, in the form that earns the most.

The derived scripts `gold` and `wrong` are offered like a package's own, so that all checks can use them.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean

from backend.domain.environments.answers import SLOT, AnswerForm, answer_forms, secret_values
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.prompts import render_observation, write_reply
from backend.domain.environments.reward_bounds import floor_of, gold_bounds
from backend.domain.environments.tools import Tool, ToolsUnusable, read_tools
from backend.domain.rollouts.rollout import Rollout, TaskSpec
from backend.domain.text import JsonObject
from workers.environments.checks.base import TOLERANCE, Check, CheckFinding, Cost, clipped, passed, skipped, warned
from workers.environments.checks.subject import CheckSubject
from workers.policies.scripted import ScriptedPolicy, resolve_schema, schema_value

ANSWER_TASKS, FORM_TASKS = 16, 3
REFUSAL = "I am not sure."


@Check(
    theme="start",
    label="Right answers are known",
    sentence="A `gold` script or the recorded answer of a task shows which reply is right.",
    advice="Add a `gold` script, or let the environment's state name the `answer`.",
    example="""
    @property
    def state(self) -> State:  # never shown to a policy
        scripts = {"gold": f"<answer>{self._answer}</answer>"}
        return State(episode_id=self._id, step_count=self._turns, scripts=scripts)
    """,
    cost=Cost.EPISODES,
)
async def answers_known(subject: CheckSubject) -> CheckFinding:
    """Without a `gold` script, write the `answer` in the state of 3 tasks in up to 32 forms, keep the best one.

    Forms: bare, in the tags, labels and JSON keys that the prompt names, boxed, as code, as an argument of each tool.
    The derived `gold` answers like that. The bounds are measured with it where the manifest declares none.
    """
    if "gold" in subject.scripts:
        return passed("The package has a `gold` script.")
    tasks = subject.tasks(max(2, ANSWER_TASKS // subject.levels))
    opened = await subject.openings(tasks, with_state=True)
    answers = {task.key: found[0] for task, (_, state) in zip(tasks, opened, strict=True) if (found := _answers(state))}
    known = [(task, opening) for task, (opening, _) in zip(tasks, opened, strict=True) if task.key in answers]
    if len(known) < max(1, len(tasks) // 2):
        return skipped(
            "The package has no `gold` script, and its state names no `answer`: no reply is known to be right."
        )
    samples = [task for task, _ in known[:FORM_TASKS]]
    prompt = "\n".join(
        [subject.manifest.proctor.agent.system]
        + [render_observation(subject.manifest.proctor.agent.observation, each.fields) for _, each in known[:1]]
    )
    tools = await _tools(subject, samples[0])
    best: tuple[float, AnswerForm, list[Rollout]] | None = None
    number = 0
    for form in _forms(subject, prompt, tools):
        rollouts = await _play(subject, form, samples, number)
        number += 1
        means = [rollout.reward or 0.0 for rollout in rollouts if rollout.is_completed]
        if means and (best is None or fmean(means) > best[0] + TOLERANCE):
            best = fmean(means), form, rollouts
        if subject.should_stop():
            break
    if best is None:
        return skipped("No episode with a recorded answer completed.")
    mean, form, shown = best
    refused = await _play(subject, form, samples, number, REFUSAL)
    refusal = fmean([rollout.reward or 0.0 for rollout in refused if rollout.is_completed] or [0.0])
    if mean <= refusal + TOLERANCE:
        subject.server.scripts_of = None
        return warned(
            f"The recorded answer, e.g. {clipped(answers[samples[0].key])}, earns {mean:.4g} in {number} forms, no more"
            f" than a refusal ({refusal:.4g}).",
            shown,
        )
    # chance, too, earns no reward for knowing
    chance = [rollout.reward or 0.0 for rollout in await subject.completed("random")]
    floor = max(refusal, fmean(chance) if chance else refusal)
    values = list(dict.fromkeys(answers.values()))
    subject.form, subject.server.scripts_of = form, partial(_derive_scripts, form, values, None)
    subject.scripts += ["gold", "wrong"] if len(values) > 1 else ["gold"]
    manifest, measured = _with_measured_bounds(subject.manifest, mean, floor)
    subject.manifest, subject.has_measured_bounds = manifest, bool(measured)
    return passed(
        f"No `gold` script: the recorded answer as {form.name} earns {mean:.4g} on {len(samples)} tasks, the best of"
        f" {number} forms; a refusal in that form {refusal:.4g}.{measured}",
        shown,
        form=form.template.replace(SLOT, "…"),
        gold=mean,
        refusal=refusal,
    )


def _derive_scripts(form: AnswerForm, others: Sequence[str], instead: str | None, state: JsonObject) -> JsonObject:
    """Return the scripts `gold` and `wrong` of a state that names its answer. `instead`: what `gold` says."""
    found = _answers(state)
    if not found:
        return {}
    other = next((each for each in others if each not in found), REFUSAL)
    return {"gold": form.write(found[0] if instead is None else instead), "wrong": form.write(other)}


def _with_measured_bounds(manifest: Manifest, gold: float, floor: float) -> tuple[Manifest, str]:
    """Fill in the bounds that a manifest does not declare, and say so."""
    update: dict[str, float] = {}
    if gold_bounds(manifest) is None:
        update["gold_minimum"] = gold
    if floor_of(manifest) is None:
        update["floor_maximum"] = min(floor, gold)
    if not update:
        return manifest, ""
    checks = manifest.proctor.checks.model_copy(update=update)
    proctor = manifest.proctor.model_copy(update={"checks": checks})
    return manifest.model_copy(update={"proctor": proctor}), " The manifest declares no bounds: these are used instead."


def _answers(state: Mapping[str, object]) -> list[str]:
    return secret_values({name: value for name, value in state.items() if name != "scripts"})


async def _play(
    subject: CheckSubject, form: AnswerForm, tasks: Sequence[TaskSpec], number: int, instead: str | None = None
) -> list[Rollout]:
    subject.server.scripts_of = partial(_derive_scripts, form, (), instead)
    pairs = [(task, 1) for task in tasks]
    return await subject.play("forms", ScriptedPolicy("gold"), pairs, offset=number * FORM_TASKS)


async def _tools(subject: CheckSubject, task: TaskSpec) -> list[Tool]:
    """Return the tools that the manifest or the first observation lists."""
    spec = subject.manifest.proctor.agent.action
    if spec.format != "tool":
        return []
    if isinstance(spec.tools, list):
        return list(spec.tools)
    async with subject.server.session() as session:
        opening, listed = await subject.open(session, task)
    try:
        return list(read_tools(listed if listed is not None else opening.fields.get(str(spec.tools))))
    except ToolsUnusable:
        return []


def _forms(subject: CheckSubject, prompt: str, tools: Sequence[Tool]) -> Iterator[AnswerForm]:
    """Yield forms of a reply that fit the action's format."""
    spec = subject.manifest.proctor.agent.action
    if spec.format == "tag":
        yield AnswerForm(f"<{spec.tag}> tags", write_reply(spec, {spec.field or "": SLOT}))
        return
    if spec.format == "text" or (spec.format == "tool" and spec.text):
        yield from answer_forms(prompt)
    if spec.format == "text":
        return
    schemas: list[tuple[str, Mapping[str, object]]] = [("", subject.server.action_schema)]
    if spec.format == "tool":
        schemas = [(tool.name, tool.parameters) for tool in tools[-8:]]
    for tool_name, schema in schemas:
        properties = schema.get("properties")
        fields = {
            name: resolve_schema(field, dict(schema))
            for name, field in (properties.items() if isinstance(properties, dict) else ())
            if isinstance(field, dict) and name != "metadata"
        }
        required = schema.get("required")
        needed = required if isinstance(required, list) and required else []
        rest = {name: schema_value(fields[name]) for name in needed if name in fields}
        for name, field in fields.items():
            if field.get("type") in {"string", "integer", "number", None}:
                values = {**rest, name: SLOT}
                if spec.format == "json":
                    yield AnswerForm(
                        f"JSON with the field {name}", write_reply(spec, values), str(field.get("type") or "string")
                    )
                else:
                    call = {spec.field or "name": tool_name, spec.arguments: values}
                    yield AnswerForm(
                        f"the argument {name} of {tool_name}",
                        write_reply(spec, call),
                        str(field.get("type") or "string"),
                    )
