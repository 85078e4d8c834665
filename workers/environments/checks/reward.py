"""Does the reward follow the quality of an answer and nothing else?

Perfect play reaches the top, degenerate play stays low, better answers earn more, and stored transcripts keep their
score.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise

from backend.domain.environments.fixtures import FixtureKind, JudgedFixture, read_fixtures
from backend.domain.environments.reward_bounds import floor_of, gold_bounds
from backend.domain.rollouts.rollout import Rollout, TaskSpec, task_of
from backend.domain.statistics import estimate_mean
from workers.environments.checks.base import (
    TOLERANCE,
    Check,
    CheckFinding,
    Cost,
    by_level,
    does_not_apply,
    failed,
    floor_limit,
    listed,
    passed,
    skipped,
    success_bounds,
    warned,
)
from workers.environments.checks.policies import DEGENERATE, ReplyPolicy, recites
from workers.environments.checks.subject import CONCURRENCY, CheckSubject
from workers.policies.scripted import ScriptedPolicy

NO_GOLD = "The manifest names no `gold` script, so there is no right answer to compare with."
NO_FLOOR = "No floor: declare `checks.floor_maximum`, or the `range` of every column."


@Check(
    label="Gold reaches the bound",
    sentence="Perfect play earns the highest reward on every task, or the declared bound of its level where "
    "chance decides.",
    advice="Fix the `gold` script or the reward. If chance or an opponent decides, declare `checks.gold_minimum`.",
    example="""
    # openenv.yaml, under proctor.checks: the least that perfect play earns, by level
    gold_minimum: [1.17, 1.04, 0.7]
    """,
    cost=Cost.EPISODES,
)
async def gold_reaches_bound(subject: CheckSubject) -> CheckFinding:
    """Play `gold` on 64 tasks per level (Terminal-Bench: oracle). Every task must earn the highest reward.

    With `checks.gold_minimum`, the upper end of each level's 95% interval must reach the bound of that level. Recorded
    answers without declared bounds warn where they earn less than half of the best one.
    """
    if "gold" not in subject.scripts:
        return skipped("The manifest names no `gold` script: nothing shows that the task can be solved.")
    bounds = gold_bounds(subject.manifest)
    if bounds is None:
        return skipped("No bound: declare `checks.gold_minimum`, or the `range` of every column.")
    rollouts = await subject.rollouts("gold")
    if subject.has_measured_bounds:
        return _recorded_answers_earn(rollouts, bounds)
    if broken := [rollout for rollout in rollouts if not rollout.is_completed]:
        return failed(f"{len(broken)} of {len(rollouts)} episodes of gold broke: {broken[0].error_message}", broken)
    worst = sorted(rollouts, key=lambda rollout: rollout.reward or 0.0)
    if subject.manifest.proctor.checks.gold_minimum is None:
        if below := [r for r in worst if (r.reward or 0.0) < bounds[r.task.level] - TOLERANCE]:
            return failed(
                f"Gold misses the highest reward of {bounds[0]:.3f} on {len(below)} of {len(rollouts)} tasks, worst on"
                f" {below[0].task.key} (level {below[0].task.level}) with {below[0].reward:.3f}. If chance or an"
                " opponent decides, declare `checks.gold_minimum`.",
                below,
                bound=bounds[0],
            )
        return passed(f"Gold gets the highest reward of {bounds[0]:.3f} on all {len(rollouts)} tasks.", worst)
    levels = by_level(rollouts)
    low = {level for level, estimate in levels.items() if estimate.high < bounds[level] - TOLERANCE}
    level_figures = {level: asdict(estimate) for level, estimate in levels.items()}
    summary = "Mean and the upper end of its 95% interval: " + "; ".join(
        f"level {level}: {e.mean:.3f} to {e.high:.3f} (bound {bounds[level]:.3f}, {e.count} tasks)"
        for level, e in levels.items()
    )
    worst.sort(key=lambda rollout: rollout.task.level not in low)
    if low:
        evidence = f"Gold stays below its bound on level {listed(sorted(low))}. {summary}."
        return failed(evidence, worst, bounds=bounds, levels=level_figures)
    return passed(f"Gold reaches its bound. {summary}.", worst, bounds=bounds, levels=level_figures)


def _recorded_answers_earn(rollouts: Sequence[Rollout], bounds: Sequence[float]) -> CheckFinding:
    """Conclude without declared bounds: recorded answers that earn clearly less than others may be recorded wrongly."""
    completed = [rollout for rollout in rollouts if rollout.is_completed]
    if not completed:
        return failed("No episode with the recorded answer completed.", rollouts)
    top = max(rollout.reward or 0.0 for rollout in completed)
    low = [rollout for rollout in rollouts if not rollout.is_completed or (rollout.reward or 0.0) < 0.5 * top]
    summary = f"The recorded answer earns up to {top:.4g} on {len(rollouts)} tasks"
    if low:
        worst = low[0].error_message or f"{low[0].reward:.4g}"
        return warned(f"{summary}, but less than half of that on {len(low)}, e.g. {low[0].task.key}: {worst}.", low)
    return passed(f"{summary}, at least half of that on all of them. No bound is declared.", completed, bounds=bounds)


@Check(
    label="Degenerate policies",
    sentence="Policies that do not try stay within 5% of the range above the floor.",
    advice="Remove rewards for form or for lucky guesses, or declare `checks.floor_maximum` if chance reaches more.",
    example="""
    rewards:
      correct: {weight: 1.0, range: [0, 1]}
      format: {weight: 0.05, range: [0, 1]}  # form alone must stay small
    checks:
      floor_maximum: 0.1  # what chance reaches
    """,
    cost=Cost.EPISODES,
)
async def degenerate_policies(subject: CheckSubject) -> CheckFinding:
    """Play thirteen policies that do not try on 24 tasks per level (ABC; HUD's "cheapest path").

    The mean must be at most the floor plus 5% of the range; the check fails if the lower end of the interval is above.
    """
    floor, limit = floor_of(subject.manifest), floor_limit(subject.manifest)
    if floor is None or limit is None:
        return skipped(NO_FLOOR)
    played = {policy: await subject.completed(policy) for policy in DEGENERATE}
    estimates = {policy: estimate_mean([r.reward or 0.0 for r in rollouts]) for policy, rollouts in played.items()}
    means = {policy: estimate for policy, estimate in estimates.items() if estimate}
    ranked = sorted(means, key=lambda policy: -means[policy].mean)
    details = {"floor": floor, "limit": limit, "policies": {policy: asdict(means[policy]) for policy in ranked}}
    summary = f"Mean rewards: {', '.join(f'{policy} {means[policy].mean:.3f}' for policy in ranked)}."
    best = sorted(played[ranked[0]], key=lambda r: -(r.reward or 0.0)) if ranked else []
    bound = f"the floor of {floor:.3f} and its margin ({limit:.3f})"
    if sure := [policy for policy in ranked if means[policy].low > limit + TOLERANCE]:
        judge = warned if subject.has_measured_bounds else failed  # the floor was measured, not declared
        return judge(f"Above {bound} without trying: {listed(sure)}. {summary}", best, **details)
    if above := [policy for policy in ranked if means[policy].mean > limit + TOLERANCE]:
        return warned(f"Possibly above {bound}: {listed(above)}. {summary}", best, **details)
    return passed(f"All {len(ranked)} policies stay at or below {bound}. {summary}", best, **details)


@Check(
    label="Untouched task",
    sentence="No task is solved before the first move.",
    advice="Remove tasks that start solved, and reward changes rather than states that already hold.",
    example="""
    def reset(self, seed=None, **kwargs):
        while True:
            self._state = self._draw(seed)
            if not self._is_solved():
                break
            seed = seed + 1
    """,
    cost=Cost.EPISODES,
)
async def untouched_task(subject: CheckSubject) -> CheckFinding:
    """Play each task with empty replies. No single task may succeed, that is reach halfway from floor to bound."""
    bounds = success_bounds(subject.manifest)
    if bounds is None:
        return skipped(NO_FLOOR)
    rollouts = await subject.completed("empty")
    openings = await subject.openings([rollout.task for rollout in rollouts[: subject.replay_limit(16)]])
    if rewarded := [opening for opening, _ in openings if any(opening.rewards.values())]:
        return warned(
            f"{len(rewarded)} of {len(openings)} resets already return a reward ({rewarded[0].rewards}); Proctor does"
            " not count it."
        )
    solved = [rollout for rollout in rollouts if (rollout.reward or 0.0) >= bounds[rollout.task.level] - TOLERANCE]
    if solved:
        return failed(
            f"Doing nothing succeeds on {len(solved)} of {len(rollouts)} tasks, e.g. {solved[0].task.key} with"
            f" {solved[0].reward:.3f} (success begins at {bounds[solved[0].task.level]:.3f}).",
            solved,
        )
    most = max((rollout.reward or 0.0 for rollout in rollouts), default=0.0)
    return passed(
        f"Doing nothing earns at most {most:.3f} on {len(rollouts)} tasks; success begins at {min(bounds):.3f}."
    )


@Check(
    label="Format variations",
    sentence="The same answer in another allowed form earns the same.",
    advice="Normalize whitespace and case before you compare, and grade the parsed answer only.",
    example="""
    def _same(self, answer: str) -> bool:
        return " ".join(answer.split()).casefold() == self._expected.casefold()
    """,
    cost=Cost.EPISODES,
    needs=("steps_and_ends", "step_deterministic"),
)
async def format_variations(subject: CheckSubject) -> CheckFinding:
    """Play gold with extra whitespace, with reasoning before and a remark after, in a code fence; and `variant_1` ….

    All columns except `length` must be equal to those of gold.
    """
    if "gold" not in subject.scripts:
        return skipped(NO_GOLD)
    gold = (await subject.completed("gold"))[:8]
    tasks = [(rollout.task, 1) for rollout in gold]
    spec, variations = subject.manifest.proctor.agent.action, {}
    rewritings: dict[str, Callable[[str], str]] = {"surrounding blanks": lambda reply: f"\n  {reply} \n\n"}
    if spec.format == "tag":
        opening, closing = f"<{spec.tag}>", f"</{spec.tag}>"
        rewritings["reasoning before"] = lambda reply: f"Let me think step by step.\nI have decided.\n\n{reply}"
        rewritings["a remark after"] = lambda reply: f"{reply}\n\nThat is my answer."
        rewritings["blanks inside the tag"] = lambda reply: reply.replace(opening, opening + "\n ").replace(
            closing, " \n" + closing
        )
    elif spec.format == "json":
        rewritings["a code fence"] = lambda reply: f"```json\n{reply}\n```"
    elif spec.format == "tool":
        rewritings["reasoning before"] = lambda reply: f"Let me think step by step.\n\n{reply}"
    for number, (name, change) in enumerate(rewritings.items()):
        policy = ReplyPolicy(lambda player, turn: player.script("gold", turn), "gold", change=change)
        variations[name] = await subject.play("rewritten", policy, tasks, offset=number * 8)
    for script in [script for script in subject.scripts if script.startswith("variant_")]:
        variations[f"`{script}`"] = await subject.play(script, ScriptedPolicy(script), tasks)
    for name, played in variations.items():
        for right, other in zip(gold, played, strict=False):
            if not other.is_completed:
                return failed(f"Gold with {name} broke on {other.task.key}: {other.error_message}.", [other, right])
            for column in right.columns:
                difference = abs(right.columns[column] - other.columns[column])
                if column != "length" and difference > subject.noise + TOLERANCE:
                    return failed(
                        f"The gold answer of {other.task.key}, written with {name}, earns `{column}`"
                        f" {other.columns[column]:.4g} instead of {right.columns[column]:.4g}.",
                        [other, right],
                    )
    names = listed(variations, 12)
    return passed(f"Gold written {len(variations)} other ways ({names}) on {len(gold)} tasks: equal columns.")


@Check(
    label="Quality ladder",
    sentence="A better answer earns more: right, then partly right, then wrong.",
    advice="Read the rollouts of the script that earns too much, and reduce the column that rewards it.",
    example="""
    @column
    def correct(self) -> float:
        right = sum(a == b for a, b in zip(self._answer, self._expected))
        return right / len(self._expected)  # right 1, partly right between, wrong 0
    """,
    cost=Cost.EPISODES,
)
async def quality_ladder(subject: CheckSubject) -> CheckFinding:
    """Compare the means of `gold`, `teacher` and `partial`, and `wrong` (else random play) on the same tasks.

    No rung may earn more than a better one, and the ends must differ (HUD: monotonicity).
    """
    if "gold" not in subject.scripts:
        return skipped(NO_GOLD)
    middle = [name for name in ("teacher", "partial") if name in subject.scripts]
    lowest = "wrong" if "wrong" in subject.scripts else "random"
    means = {}
    for name in ["gold", *middle, lowest]:
        estimate = estimate_mean([rollout.reward or 0.0 for rollout in await subject.completed(name)])
        if estimate is None:
            return failed(f"No episode of `{name}` completed.", await subject.rollouts(name))
        means[name] = estimate
    # teacher and partial have no order between them
    ladder = ["gold", *sorted(middle, key=lambda name: -means[name].mean), lowest]
    details = {"means": {name: means[name].mean for name in ladder}}
    rungs = [f"{name} {means[name].mean:.3f}" for name in ladder]
    for better, worse in pairwise(ladder):
        if means[worse].low > means[better].high + TOLERANCE or means[worse].mean > means[better].mean + TOLERANCE:
            shown = sorted(await subject.completed(worse), key=lambda rollout: -(rollout.reward or 0.0))
            return failed(f"`{worse}` earns more than `{better}`: {', '.join(rungs)}.", shown, **details)
    if means[lowest].mean >= means["gold"].mean - TOLERANCE:
        return failed(f"Right and wrong answers earn the same: {', '.join(rungs)}.", **details)
    return passed(f"Mean rewards: {' > '.join(rungs)}.", **details)


@Check(
    label="Fixtures hold",
    sentence="Every transcript in the package earns the columns that it states.",
    advice="Fix the reward, or save the fixture again if the new values are right.",
    example="""
    {
      "task": {"split": "heldout", "index": 0},
      "replies": ["<move>5</move>"],
      "columns": {"win": 0.0, "format": 1.0}
    }
    """,
    cost=Cost.EPISODES,
    needs=("starts_and_resets", "agent_fits"),
)
async def fixtures_hold(subject: CheckSubject) -> CheckFinding:
    """Play each `fixtures/*.json`. Columns must be equal to 1e-6, `gold` at its bound, `hack` at or below the floor."""
    fixtures, problems = read_fixtures(subject.files, subject.manifest)
    if problems:
        texts = [f"{problem.path}: {problem.message}" for problem in problems]
        return failed(f"{len(problems)} problems in the fixtures: {listed(texts, 3)}.", problems=texts)
    if not fixtures:
        return does_not_apply("The package has no fixtures (`fixtures/<name>.json`).")
    gold, floor, reach = gold_bounds(subject.manifest), floor_of(subject.manifest), subject.noise + TOLERANCE
    wrong, shown = [], []
    for number, fixture in enumerate(fixtures):
        task = task_of(subject.manifest, fixture.task.split, fixture.task.index, fixture.task.seed, fixture.task.level)
        rollout = await _recite(subject, "fixtures", task, fixture.replies, number)
        reason = ""
        if rollout is None or not rollout.is_completed:
            reason = f"the episode broke: {rollout.error_message if rollout else 'stopped'}"
        elif len(rollout.steps) < len(fixture.replies):
            reason = f"the episode was over after {len(rollout.steps)} of {len(fixture.replies)} replies"
        elif changed := [name for name, value in fixture.columns.items() if abs(rollout.columns[name] - value) > reach]:
            name = changed[0]
            reason = f"`{name}` is {rollout.columns[name]:.6g} instead of {fixture.columns[name]:.6g}"
        else:
            reward = rollout.reward or 0.0
            bound = gold[rollout.task.level] if gold else None
            if fixture.kind is FixtureKind.GOLD and bound is not None and reward < bound - TOLERANCE:
                reason = f"gold earns {reward:.4g}, below the bound of {bound:.4g}"
            if fixture.kind is FixtureKind.HACK and floor is not None and reward > floor + TOLERANCE:
                reason = f"the hack earns {reward:.4g}, above the floor of {floor:.4g}"
        if reason:
            wrong.append(f"{fixture.path}: {reason}")
            shown += [rollout] if rollout else []
    if wrong:
        return failed(f"{len(wrong)} of {len(fixtures)} fixtures do not hold. {listed(wrong, 3)}.", shown, wrong=wrong)
    names = listed([fixture.name for fixture in fixtures], 12)
    return passed(f"{len(fixtures)} fixtures earn the columns they state: {names}.")


async def _recite(
    subject: CheckSubject, name: str, task: TaskSpec, replies: Sequence[str], number: int
) -> Rollout | None:
    """Play a transcript as a whole episode: after its last reply the episode ends. None if the checks were stopped."""
    proctor = subject.manifest.proctor
    short = proctor.model_copy(update={"episode": proctor.episode.model_copy(update={"max_turns": len(replies)})})
    manifest = subject.manifest.model_copy(update={"proctor": short})
    return next(iter(await subject.play(name, recites(replies), [(task, 1)], manifest=manifest, offset=number)), None)


@Check(
    label="Reviewed episodes hold",
    sentence="An episode reviewed as a hack scores low; a confirmed honest one scores as high as it did.",
    advice="Fix the reward that the hack exploits, or withdraw the verdict on the fixture's page.",
    example="""
    @column
    def solved(self) -> float:
        # an early end without an answer must not be rewarded
        return float(self._answer is not None and self._answer == self._expected)
    """,
    cost=Cost.EPISODES,
    needs=("starts_and_resets", "agent_fits"),
)
async def judged_fixtures_hold(subject: CheckSubject) -> CheckFinding:
    """Play the stored replies of every reviewed fixture of the environment. The bound of the fixture must hold."""
    if not subject.judged:
        return does_not_apply("No episode of this environment was reviewed as a hack or kept as an honest one.")
    limiter = asyncio.Semaphore(CONCURRENCY)

    async def play(number: int, fixture: JudgedFixture) -> Rollout | None:
        async with limiter:
            return await _recite(subject, "judged", fixture.task, fixture.replies, number)

    rollouts = await asyncio.gather(*(play(number, fixture) for number, fixture in enumerate(subject.judged)))
    results, problems, shown = [], [], []
    for fixture, rollout in zip(subject.judged, rollouts, strict=True):
        reward = rollout.reward if rollout and rollout.is_completed else None
        name, problem = f"{fixture.name} (judged by {fixture.judge})", ""
        if reward is None:
            problem = f"{name}: the episode broke: {rollout.error_message if rollout else 'stopped'}"
        elif not fixture.is_met(reward, subject.noise + TOLERANCE):
            problem = f"{name} earns {reward:.4g} instead of {fixture.demand}"
        result = {"fixture": fixture.name, "judge": fixture.judge, "demand": fixture.demand, "reward": reward}
        results.append(result | {"problem": problem})
        if problem:
            problems.append(problem)
            shown += [rollout] if rollout else []
    hacks = sum(fixture.highest is not None for fixture in subject.judged)
    count = f"{hacks} judged a hack and {len(results) - hacks} judged honest"
    if problems:
        evidence = f"{len(problems)} of {len(results)} judged episodes ({count}) do not hold. {listed(problems, 3)}."
        return failed(evidence, shown, fixtures=results)
    return passed(
        f"{len(results)} judged episodes, {count}, are rewarded according to their verdicts.", fixtures=results
    )
