"""Does the reward follow the quality of an answer and nothing else? Variations, a ladder and fixtures."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from backend.domain.environments.fixtures import Fixture, FixtureKind, against_manifest, read_fixtures
from backend.domain.environments.manifest import ActionSpec, EpisodeSpec, Manifest
from backend.domain.environments.reward_bounds import floor_of, gold_bounds
from backend.domain.review.judged_fixtures import JudgedFixture
from backend.domain.rollouts.rollout import Rollout, TaskSpec
from backend.domain.statistics import estimate_mean
from workers.environments.checks.base import TOLERANCE, Finding, check, does_not_apply, failed, listed, passed, skipped
from workers.environments.checks.policies import recites, rewrites
from workers.environments.checks.subject import CONCURRENCY, Subject
from workers.policies.scripted import ScriptedPolicy

SAMPLES = 8
NO_GOLD = "The manifest names no `gold` script: there is no right answer to compare with."


@check(
    "format_variations",
    theme="reward",
    label="Format variations",
    sentence="The same answer in another allowed form earns the same.",
    advice="Normalize whitespace and case before you compare, and grade the parsed answer only.",
    needs=(
        "steps_and_ends",
        "step_deterministic",
    ),
)
async def format_variations(subject: Subject) -> Finding:
    """Ways of writing the gold answer that mean the same, ours and the package's own."""
    if "gold" not in subject.scripts:
        return skipped(NO_GOLD)
    gold = (await subject.completed("gold"))[:SAMPLES]
    tasks = [(rollout.task, 1) for rollout in gold]
    tried = []
    for number, (name, change) in enumerate(_rewritings(subject.manifest.proctor.agent.action).items()):
        offset = number * SAMPLES
        played = await subject.play("rewritten", rewrites("gold", change), tasks, offset=offset)
        if finding := _compare(subject, name, gold, played):
            return finding
        tried.append(name)
    for name in [script for script in subject.scripts if script.startswith("variant_")]:
        if finding := _compare(subject, f"`{name}`", gold, await subject.play(name, ScriptedPolicy(name), tasks)):
            return finding
        tried.append(f"`{name}`")
    return passed(f"Gold written {len(tried)} other ways ({listed(tried, 12)}) on {len(gold)} tasks: equal columns.")


def _rewritings(spec: ActionSpec) -> Mapping[str, Callable[[str], str]]:
    around: dict[str, Callable[[str], str]] = {"blanks around": lambda reply: f"\n  {reply} \n\n"}
    match spec.format:
        case "tag":
            inside = f"<{spec.tag}>", f"</{spec.tag}>"
            return around | {
                "reasoning before": lambda reply: f"Let me think step by step.\nI have decided.\n\n{reply}",
                "a remark after": lambda reply: f"{reply}\n\nThat is my answer.",
                "blanks inside the tag": lambda reply: reply.replace(inside[0], inside[0] + "\n ").replace(
                    inside[1], " \n" + inside[1]
                ),
            }
        case "json":
            return around | {"a code fence": lambda reply: f"```json\n{reply}\n```"}
        case "tool":
            return around | {"reasoning before": lambda reply: f"Let me think step by step.\n\n{reply}"}
        case "text":
            return around


def _compare(subject: Subject, name: str, gold: Sequence[Rollout], played: Sequence[Rollout]) -> Finding | None:
    """Length alone may differ."""
    reach = subject.manifest.proctor.checks.noise + TOLERANCE
    for right, other in zip(gold, played, strict=False):
        if not other.is_completed:
            return failed(f"Gold with {name} broke on {other.task.key}: {other.error_message}.", [other, right])
        columns = [column for column in right.columns if column != "length"]
        for column in columns:
            if abs(right.columns[column] - other.columns[column]) > reach:
                return failed(
                    f"The gold answer of {other.task.key}, written with {name}, earns `{column}`"
                    f" {other.columns[column]:.4g} instead of {right.columns[column]:.4g}.",
                    [other, right],
                )
    return None


@check(
    "quality_ladder",
    theme="reward",
    label="Quality ladder",
    sentence="A better answer earns more: right, then partly right, then wrong.",
    advice="Look at the rollouts of the script that earns too much and reduce the column that rewards it.",
    needs=("steps_and_ends",),
)
async def quality_ladder(subject: Subject) -> Finding:
    """Better answers earn more, on average over the same tasks; the ends of the ladder lie apart."""
    if "gold" not in subject.scripts:
        return skipped(NO_GOLD)
    rungs = ["gold", *(name for name in ("teacher", "partial") if name in subject.scripts)]
    rungs.append("wrong" if "wrong" in subject.scripts else "random")
    means = {}
    for name in rungs:
        estimate = estimate_mean([rollout.reward or 0.0 for rollout in await subject.completed(name)])
        if estimate is None:
            return failed(f"No episode of `{name}` came to its end.", await subject.rollouts(name))
        means[name] = estimate
    order = sorted(rungs[1:-1], key=lambda name: -means[name].mean)  # teacher and partial have no order of their own
    ladder = ["gold", *order, rungs[-1]]
    told = " > ".join(f"{name} {means[name].mean:.3f}" for name in ladder)
    details: dict[str, Any] = {"means": {name: means[name].mean for name in ladder}}
    for better, worse in pairwise(ladder):
        if means[worse].low > means[better].high + TOLERANCE or means[worse].mean > means[better].mean + TOLERANCE:
            shown = sorted(await subject.completed(worse), key=lambda rollout: -(rollout.reward or 0.0))
            return failed(f"`{worse}` earns more than `{better}`: {told.replace(' > ', ', ')}.", shown, **details)
    if means[ladder[-1]].mean >= means["gold"].mean - TOLERANCE:
        return failed(f"Right and wrong answers earn the same: {told.replace(' > ', ', ')}.", **details)
    return passed(f"Mean rewards: {told}.", **details)


@check(
    "fixtures_hold",
    theme="reward",
    label="Fixtures hold",
    sentence="Every transcript in the package earns the columns that it states.",
    advice="Fix the reward, or save the fixture again if the new values are right.",
    needs=(
        "starts_and_resets",
        "agent_fits",
    ),
)
async def fixtures_hold(subject: Subject) -> Finding:
    fixtures, problems = read_fixtures(subject.files)
    problems = problems + [problem for fixture in fixtures for problem in against_manifest(fixture, subject.manifest)]
    if problems:
        told = listed(problems, 3)
        return failed(f"{len(problems)} problems in the fixtures: {told}.", problems=[str(p) for p in problems])
    if not fixtures:
        return does_not_apply("The package has no fixtures (`fixtures/<name>.json`).")
    wrong, shown = [], []
    for number, fixture in enumerate(fixtures):
        rollout = next(iter(await _play_fixture(subject, fixture, number)), None)
        if reason := _fixture_reason(subject, fixture, rollout):
            wrong.append(f"{fixture.path}: {reason}")
            shown += [rollout] if rollout else []
    if wrong:
        return failed(f"{len(wrong)} of {len(fixtures)} fixtures do not hold. {listed(wrong, 3)}.", shown, wrong=wrong)
    return passed(f"{len(fixtures)} fixtures earn what they say: {listed([f.name for f in fixtures], 12)}.")


async def _play_fixture(subject: Subject, fixture: Fixture, number: int) -> list[Rollout]:
    return await _recite(subject, "fixtures", fixture.task.spec(subject.manifest), fixture.replies, number)


async def _recite(subject: Subject, name: str, task: TaskSpec, replies: Sequence[str], number: int) -> list[Rollout]:
    """The transcript is the whole episode: where it ends, so does the episode."""
    short = subject.manifest.proctor.episode.model_copy(update={"max_turns": len(replies)})
    manifest = _with_episode(subject.manifest, short)
    return await subject.play(name, recites(replies), [(task, 1)], manifest=manifest, offset=number)


@check(
    "judged_fixtures_hold",
    theme="reward",
    label="Reviewed episodes hold",
    sentence="An episode that a person judged a hack scores low; a confirmed honest one scores as high as it did.",
    advice="Fix the reward that pays for the hack, or withdraw the verdict on the fixture's page.",
    needs=(
        "starts_and_resets",
        "agent_fits",
    ),
)
async def judged_fixtures_hold(subject: Subject) -> Finding:
    """Every episode that people judged, whichever version it was played on."""
    if not subject.judged:
        return does_not_apply("Nobody judged an episode of this environment a hack, or kept an honest one.")
    gate = asyncio.Semaphore(CONCURRENCY)

    async def replayed(number: int, fixture: JudgedFixture) -> tuple[JudgedFixture, Rollout | None]:
        async with gate:
            played = await _recite(subject, "judged", fixture.task, fixture.replies, number)
        return fixture, next(iter(played), None)

    pairs = await asyncio.gather(*(replayed(number, fixture) for number, fixture in enumerate(subject.judged)))
    results = [_judged_result(subject, fixture, rollout) for fixture, rollout in pairs]
    broken = [(result["told"], rollout) for result, (_, rollout) in zip(results, pairs, strict=True) if result["told"]]
    hacks = sum(fixture.highest is not None for fixture in subject.judged)
    told = f"{hacks} judged a hack and {len(pairs) - hacks} judged honest"
    if broken:
        shown = [rollout for _, rollout in broken if rollout]
        sentence = f"{len(broken)} of {len(pairs)} judged episodes ({told}) do not hold. "
        return failed(sentence + listed([text for text, _ in broken], 3) + ".", shown, fixtures=results)
    return passed(f"{len(pairs)} judged episodes, {told}, are rewarded as people said.", fixtures=results)


def _judged_result(subject: Subject, fixture: JudgedFixture, rollout: Rollout | None) -> dict[str, Any]:
    """`told` says what does not hold; empty where it does."""
    reward = rollout.reward if rollout and rollout.is_completed else None
    result = {"fixture": fixture.name, "judge": fixture.judge, "demand": fixture.demand, "reward": reward, "told": ""}
    if reward is None:
        broke = rollout.error_message if rollout else "stopped"
        return result | {"told": f"{fixture.name} (judged by {fixture.judge}): the episode broke: {broke}"}
    if not fixture.is_met(reward, subject.manifest.proctor.checks.noise + TOLERANCE):
        told = f"{fixture.name} (judged by {fixture.judge}) earns {reward:.4g} instead of {fixture.demand}"
        return result | {"told": told}
    return result


def _with_episode(manifest: Manifest, episode: EpisodeSpec) -> Manifest:
    return manifest.model_copy(update={"proctor": manifest.proctor.model_copy(update={"episode": episode})})


def _fixture_reason(subject: Subject, fixture: Fixture, rollout: Rollout | None) -> str | None:
    """Why it does not hold, or None."""
    if rollout is None or not rollout.is_completed:
        return f"the episode broke: {rollout.error_message if rollout else 'stopped'}"
    if len(rollout.steps) < len(fixture.replies):
        return f"the episode was over after {len(rollout.steps)} of {len(fixture.replies)} replies"
    reach = subject.manifest.proctor.checks.noise + TOLERANCE
    for name, expected in fixture.columns.items():
        if abs(rollout.columns[name] - expected) > reach:
            return f"`{name}` is {rollout.columns[name]:.6g} instead of {expected:.6g}"
    reward, bounds, floor = rollout.reward or 0.0, gold_bounds(subject.manifest), floor_of(subject.manifest)
    if fixture.kind is FixtureKind.GOLD and bounds and reward < bounds[rollout.task.level] - TOLERANCE:
        return f"gold earns {reward:.4g}, below the bound of {bounds[rollout.task.level]:.4g}"
    if fixture.kind is FixtureKind.HACK and floor is not None and reward > floor + TOLERANCE:
        return f"the hack earns {reward:.4g}, above the floor of {floor:.4g}"
    return None
