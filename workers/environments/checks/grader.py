"""Does the grader reward right answers, and only right ones? Audited with answers that derive from the right one.

Wrong answers close to it must lose its reward, other writings of it must keep it, and nothing that needs no answer may
be worth the effort more. Survivors are rollouts, which can be made fixtures.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean

from backend.domain.environments.answers import (
    HALF_CHANGED,
    SLOT,
    AnswerForm,
    AnswerVariant,
    changed_share,
    costly_answers,
    equal_answers,
    is_rounded,
    secret_values,
    wrong_answers,
)
from backend.domain.environments.programs import (
    program_mutants,
    read_program,
    source_literals,
    wrong_programs,
)
from backend.domain.environments.prompts import parse_reply, write_reply
from backend.domain.rollouts.rollout import Rollout, TaskSpec, weighted_reward
from backend.domain.statistics import estimate_mean, wilson
from backend.domain.text import JsonObject
from workers.environments.checks.base import (
    TOLERANCE,
    Check,
    CheckFinding,
    Cost,
    clipped,
    does_not_apply,
    failed,
    listed,
    passed,
    skipped,
    warned,
)
from workers.environments.checks.policies import DEGENERATE, ReplyPlayer, ReplyPolicy, recites, writes
from workers.environments.checks.ranges import played_repetitions
from workers.environments.checks.subject import CheckSubject
from workers.environments.client import EnvServer
from workers.policies.base import Turn

CASES = 8
SECONDS = 6.0
"""Time for the variants of an environment's answers, after those of the first two tasks."""
MARGIN = 0.05
"""Share of the distance from the lowest reward to gold's that a wrong answer must lose."""
PARTIAL = 0.25
"""Share of that distance that changing half of an answer must lose, to count as partial credit."""
OFTEN = 0.25
"""Share of tasks on which a wrong answer may keep the reward by chance: another answer may be right, too."""
MUTANTS_KILLED = 0.5
"""Share of changed programs that a grader must reject. Some are equal to the right one."""
EFFORT = 0.6, 0.75
"""Share of the distance from the lowest reward to gold's that a policy without effort may earn: warns, fails."""
MAX_SURVIVORS = 24
NO_ANSWER = "Perfect play takes several moves and the state names no `answer`: no answer to vary."


@dataclass(frozen=True, slots=True)
class AnswerCase:
    """A task with its right answer, and how it is written."""

    gold: Rollout
    answer: str
    form: AnswerForm
    prompt: str
    is_only_one: bool
    """No other answer is right: the state names it, or it has at most three words."""
    lowest: float
    """Mean reward of the worst policy that does not try."""

    @property
    def limit(self) -> float:
        """Return the most that a wrong answer may earn."""
        gold = self.gold.reward or 0.0
        return gold - max(TOLERANCE, MARGIN * (gold - self.lowest))

    @property
    def task(self) -> TaskSpec:
        return self.gold.task

    def replies(self, answers: Sequence[str]) -> list[str]:
        """Return the whole transcript with these answers, one after the other, wherever gold gives the right one."""
        *before, right = [step.reply for step in self.gold.steps]
        instead = "\n".join(self.form.write(answer) for answer in answers)
        return [*(instead if reply == right else reply for reply in before), instead]


@dataclass(slots=True)
class VariantTally:
    """Results of one variant over its tasks."""

    played: int = 0
    rewarded: list[tuple[AnswerCase, Rollout]] = field(default_factory=list)
    """Tasks on which it earned as much as the right answer, with the rollout."""
    rounded: int = 0
    """Tasks on which it was rewarded and is right but for rounding. They are not in `played`."""
    partial: int = 0
    """Tasks on which it lost as much as its small share of the answer is worth. They are not in `played`."""

    @property
    def share(self) -> float:
        tasks = self.played + self.rounded + self.partial
        return len(self.rewarded) / tasks if tasks else 0.0


async def answer_cases(subject: CheckSubject) -> list[AnswerCase]:
    """Return some tasks that gold solves with a last reply that holds the answer; empty if there are none."""
    if "gold" not in subject.scripts:
        return []
    gold = [rollout for rollout in await subject.completed("gold") if rollout.steps]
    if not gold:
        return []
    step = max(1, len(gold) // CASES)
    gold = gold[::step][:CASES]
    lowest = _lowest(subject)
    are_single = all(len(rollout.steps) == 1 for rollout in gold)
    states = [state for _, state in await subject.openings([rollout.task for rollout in gold], with_state=True)]
    cases = []
    for rollout, state in zip(gold, states, strict=True):
        secrets = secret_values({name: value for name, value in state.items() if name != "scripts"})
        found = _split_answer(subject, rollout.steps[-1].reply, secrets, are_single)
        if found is not None:
            is_only_one = found[0] in secrets or len(found[0].split()) <= 3
            prompts = [str(message["content"]) for message in rollout.messages if message["role"] != "assistant"]
            cases.append(AnswerCase(rollout, *found, "\n\n".join(prompts[:2]), is_only_one, lowest))
    return cases


def _split_answer(
    subject: CheckSubject, reply: str, secrets: Sequence[str], is_single: bool
) -> tuple[str, AnswerForm] | None:
    """Split gold's last reply into the answer and its form. None if it is not known which part is the answer."""
    if subject.form is not None:
        before, _, after = subject.form.template.partition(SLOT)
        for secret in secrets:
            if subject.form.write(secret) == reply:
                return secret, subject.form
        if not subject.form.json_type and reply.startswith(before) and reply.endswith(after):
            return reply[len(before) : len(reply) - len(after) or None], subject.form
        return None
    spec = subject.manifest.proctor.agent.action
    action = parse_reply(spec, reply).action
    if action is None:
        return None
    values: JsonObject = action
    if spec.format == "tool":
        arguments = action.get(spec.arguments)
        values = arguments if isinstance(arguments, dict) else {str(spec.text): action.get(str(spec.text))}
    plain = {k: v for k, v in values.items() if isinstance(v, str | int | float) and not isinstance(v, bool)}
    named = [name for name, value in plain.items() if str(value) in secrets]
    chosen = named or (list(plain) if is_single and len(plain) == 1 and len(values) == 1 else [])
    if not chosen:
        for secret in secrets:  # inside a longer text, such as tags in free text
            for value in plain.values():
                if isinstance(value, str) and len(secret) > 0 and value.count(secret) == 1 and spec.format == "text":
                    return secret, AnswerForm("as gold writes it", value.replace(secret, SLOT))
        return None
    name = chosen[0]
    if spec.format in {"tag", "text"} or (spec.format == "tool" and name == spec.text):
        where = spec.text if spec.format == "tool" else spec.field
        return str(plain[name]), AnswerForm("as gold writes it", write_reply(spec, {where or "": SLOT}))
    inner = {**values, name: SLOT}
    kind = "string" if isinstance(plain[name], str) else "number"
    template = write_reply(spec, inner if spec.format == "json" else {**action, spec.arguments: inner})
    return str(plain[name]), AnswerForm("as gold writes it", template, kind)


@Check(
    label="Wrong answers lose",
    sentence="A wrong answer in the right form earns less than the right one, however close or cunning it is.",
    advice="Read the surviving answers, compare the whole parsed answer, and make the worst survivors fixtures.",
    example="""
    parsed = re.fullmatch(r"\\s*(-?\\d+)\\s*", answer)  # the whole answer, not a part of it
    return float(parsed is not None and int(parsed[1]) == self._expected)
    """,
    cost=Cost.EPISODES,
    needs=("steps_and_ends", "rewards_finite"),
)
async def wrong_answers_lose(subject: CheckSubject) -> CheckFinding:
    """Play about twenty wrong answers derived from the right one on 8 tasks: off by one, negated, truncated, hedged ….

    Each must lose 5% of the distance to the lowest reward. Fails if one kind keeps the reward on more than 25% of its
    tasks, warns if any does. Not counted, but named: a decimal within 1% or one unit of its last digit, and a small
    change of an answer with partial credit. That is given if changing every second character loses L, at least 25% of
    the distance; then changing the share s of the letters and digits must lose s·L. Right programs are replaced by
    about 80 programs that do not solve the task and go around the tests, and by 24 with one change each, of which the
    grader must reject half.
    """
    if "gold" not in subject.scripts:
        return skipped("No reply is known to be right, so none is known to be wrong.")
    cases = await answer_cases(subject)
    if not cases:
        return does_not_apply(NO_ANSWER)
    cases = [case for case in cases if (case.gold.reward or 0.0) > case.lowest + TOLERANCE]
    if not cases:
        return skipped("Gold earns no more than the worst policy, so nothing shows a lost reward.")
    if any(read_program(case.answer, case.prompt) for case in cases):
        return await _audit_programs(subject, cases)
    answers = list(dict.fromkeys(case.answer for case in cases))
    takes_one = subject.manifest.proctor.agent.action.format != "text"
    tallies: dict[str, VariantTally] = {}
    began, number = time.perf_counter(), 0
    for case in cases:
        others = [each for each in answers if each != case.answer]
        variants = wrong_answers(case.answer, others, case.prompt, is_only_one=case.is_only_one)
        if takes_one:  # the format itself allows one action
            variants = [each for each in variants if len(each.answers[0]) == 1]
        number = await _play_variants(subject, case, variants, tallies, number)
        if subject.should_stop() or (number and time.perf_counter() - began > SECONDS):
            break
    return _judge_wrong(tallies)


async def _play_variants(
    subject: CheckSubject,
    case: AnswerCase,
    variants: Sequence[AnswerVariant],
    tallies: dict[str, VariantTally],
    number: int,
    *,
    name: str = "variants",
    server: EnvServer | None = None,
) -> int:
    """Play all alternatives of the variants on one task at the same time; return the next free group's number."""
    transcripts = [(variant, case.replies(answers)) for variant in variants for answers in variant.answers]
    rollouts = await _recite_all(subject, name, case.task, [replies for _, replies in transcripts], number, server)
    earned: dict[str, list[Rollout]] = {}
    for (variant, _), rollout in zip(transcripts, rollouts, strict=True):
        if rollout is not None:
            earned.setdefault(variant.name, []).append(rollout)
    gold = case.gold.reward or 0.0
    half_loss = gold - max((rollout.reward or 0.0 for rollout in earned.get(HALF_CHANGED, ())), default=gold)
    is_graded = half_loss >= PARTIAL * (gold - case.lowest)
    for variant in variants:
        played = earned.get(variant.name, [])
        if len(played) < len(variant.answers):
            continue
        tally = tallies.setdefault(variant.name, VariantTally())
        tally.played += 1
        if not all(rollout.is_completed and (rollout.reward or 0.0) > case.limit for rollout in played):
            continue
        text, lost = variant.answers[0][0], gold - (played[0].reward or 0.0)
        is_single = variant.answers == ((text,),)
        if is_single and is_rounded(case.answer, text):
            tally.rounded += 1
            tally.played -= 1
        elif is_single and is_graded and lost > TOLERANCE and lost >= half_loss * changed_share(case.answer, text):
            tally.partial += 1
            tally.played -= 1
        else:
            tally.rewarded.append((case, played[0]))
    return number + len(transcripts)


async def _recite_all(
    subject: CheckSubject,
    name: str,
    task: TaskSpec,
    transcripts: Sequence[Sequence[str]],
    number: int,
    server: EnvServer | None = None,
) -> list[Rollout | None]:
    """Play transcripts on one task at the same time. Unplayed ones, after a stop, are None."""

    def reply(player: ReplyPlayer, turn: Turn) -> str:
        replies = transcripts[player.member % len(transcripts)]
        return replies[turn.index] if turn.index < len(replies) else ""

    if subject.manifest.proctor.tasks.grouped:  # members of a group would be scored together
        played = []
        for at, replies in enumerate(transcripts):
            policy = recites(replies)
            played += await subject.play(name, policy, [(task, 1)], offset=number + at, server=server)
        return [*played, *[None] * (len(transcripts) - len(played))]
    rollouts = await subject.play(name, ReplyPolicy(reply), [(task, len(transcripts))], offset=number, server=server)
    by_member = {rollout.member: rollout for rollout in rollouts}
    return [by_member.get(member) for member in range(len(transcripts))]


def _lowest(subject: CheckSubject) -> float:
    """Return the lowest mean reward of a policy that does not try."""
    means = []
    for policy in DEGENERATE:
        if rollouts := [rollout for rollout in subject.played.get(policy, []) if rollout.is_completed]:
            means.append(fmean([rollout.reward or 0.0 for rollout in rollouts]))
    return min(means, default=0.0)


def _described(name: str, case: AnswerCase, rollout: Rollout) -> JsonObject:
    """Describe a survivor for the certificate's page: what was answered, where, and what it earned."""
    at = min(len(rollout.steps), len(case.gold.steps)) - 1
    return {
        "variant": name,
        "task": case.task.key,
        "reply": rollout.steps[at].reply[:400] if rollout.steps else "",
        "reward": rollout.reward,
        "gold": case.gold.reward,
        "bound": ((case.gold.reward or 0.0) + case.lowest) / 2,
        "rollout": rollout,
    }


def _survivors(tallies: dict[str, VariantTally]) -> list[JsonObject]:
    """Describe what kept the reward, the most frequent first."""
    return [
        _described(name, case, rollout)
        for name, tally in sorted(tallies.items(), key=lambda item: -item[1].share)
        for case, rollout in tally.rewarded[:2]
    ][:MAX_SURVIVORS]


def _judge_wrong(
    tallies: dict[str, VariantTally], summary: str = "", shortage: str = "", mutants: Sequence[int] = ()
) -> CheckFinding:
    """Conclude from the wrong answers that kept the reward. `shortage`: a failure found otherwise.

    `mutants`: number of changed programs that were rejected, and of all.
    """
    played, rewarded = sum(t.played for t in tallies.values()), sum(len(t.rewarded) for t in tallies.values())
    if not played:
        return skipped("No wrong answer could be played.")
    ranked = sorted(tallies, key=lambda name: -tallies[name].share)
    often = [name for name in ranked if tallies[name].share > OFTEN]
    seldom = [name for name in ranked if 0 < tallies[name].share <= OFTEN]
    interval = wilson(played - rewarded, played)
    evidence = f"{played - rewarded} of {played} wrong answers lose{summary}."
    rounded, partial = (
        {name: getattr(tally, kind) for name, tally in tallies.items() if getattr(tally, kind)}
        for kind in ("rounded", "partial")
    )
    for counts, why in ((rounded, "decimals within 1% or one unit"), (partial, "small changes with partial credit")):
        if counts:
            evidence += f" Not counted: {sum(counts.values())} {why} ({listed(counts)})."
    shown = [rollout for name in ranked for _, rollout in tallies[name].rewarded[:2]]
    details: dict[str, object] = {
        "killed": played - rewarded,
        "played": played,
        "share": (played - rewarded) / played,
        "interval": [interval.low, interval.high],
        "variants": {name: [tally.played - len(tally.rewarded), tally.played] for name, tally in tallies.items()},
        "survivors": _survivors(tallies),
        **({"rounded": rounded} if rounded else {}),
        **({"partial": partial} if partial else {}),
        **({"mutants": list(mutants)} if mutants else {}),
    }
    if often or shortage:
        names = f" Rewarded like the right answer: {listed(often)}." if often else ""
        example = ""
        if often:
            case, rollout = tallies[often[0]].rewarded[0]
            reply = _described(often[0], case, rollout)["reply"]
            example = f" E.g. {clipped(reply, 80)} earns {rollout.reward:.4g} on {rollout.task.key}, where "
            example += f"{clipped(case.answer, 40)} is right and earns {case.gold.reward:.4g}."
        return failed(f"{evidence}{names}{example}{shortage}", shown, **details)
    if seldom:
        return warned(f"{evidence} Seldom rewarded like the right answer: {listed(seldom)}.", shown, **details)
    return passed(evidence, shown, **details)


async def _audit_programs(subject: CheckSubject, cases: Sequence[AnswerCase]) -> CheckFinding:
    """Play wrong programs on two tasks, intrusive ones on a separate server, and programs with one change."""
    literals = source_literals({path: text for path, text in subject.files.items() if not path.startswith("fixtures/")})
    tallies: dict[str, VariantTally] = {}
    changed: dict[str, VariantTally] = {}
    number, began = 0, time.perf_counter()
    for case in cases[:2]:
        program = read_program(case.answer, case.prompt)
        if program is None:
            continue
        code = _Fence(case.answer)
        wrong = wrong_programs(program, case.prompt, literals)
        calm = [AnswerVariant(each.name, ((code.write(each.code),),)) for each in wrong if not each.is_intrusive]
        number = await _play_variants(subject, case, calm, tallies, number)
        mutants = [AnswerVariant(each.name, ((code.write(each.code),),)) for each in program_mutants(program)]
        number = await _play_variants(subject, case, mutants, changed, number)
        if case is cases[0] and subject.second_process is not None:
            async with subject.second_process() as server:
                for each in [each for each in wrong if each.is_intrusive]:
                    # the wrong program, then one that returns nothing and the right one: they must be graded as before
                    stub = AnswerVariant(f"after a program that {each.name}", ((code.write(wrong[0].code),),))
                    own = AnswerVariant(each.name, ((code.write(each.code),),))
                    for variant in (own, stub):
                        number = await _play_variants(
                            subject, case, [variant], tallies, number, name="intrusive", server=server
                        )
                    if subject.should_stop():
                        break
        if subject.should_stop() or time.perf_counter() - began > 5 * SECONDS:
            break
    played = sum(tally.played for tally in changed.values())
    kept = sum(len(tally.rewarded) for tally in changed.values())
    summary, shortage = "", ""
    if played:
        summary = f", and {played - kept} of {played} programs with one change"
        if kept / played > 1 - MUTANTS_KILLED:
            shortage = f" {kept} of {played} programs with one change keep the reward: the tests cover too little."
    return _judge_wrong(tallies, summary, shortage, [played - kept, played])


class _Fence:
    """Writes a program as the right answer does: with or without the fence of a code block."""

    def __init__(self, answer: str) -> None:
        self.is_fenced = answer.lstrip().startswith("```")

    def write(self, code: str) -> str:
        return f"```python\n{code}\n```" if self.is_fenced else code


@Check(
    label="Equal answers keep the reward",
    sentence="The right answer earns the same when it is given again or written in another way that is declared free.",
    advice="Normalize the answer before you compare, and remove randomness from the grader.",
    example="""
    def normalized(answer: str) -> Fraction | None:
        try:
            return Fraction(answer.strip())  # "0.5", "1/2" and "0.50" are equal
        except ValueError:
            return None
    """,
    cost=Cost.EPISODES,
    needs=("steps_and_ends", "rewards_finite"),
)
async def equal_answers_win(subject: CheckSubject) -> CheckFinding:
    """Give the right answer four times, with blanks and a line break, and in the forms that the manifest declares free.

    `checks.free` declares `case`, `order` and `numbers`, `checks.synonyms` other words. On 8 tasks; each must keep
    95% of the distance to the lowest reward. Different rewards of one answer fail as a flaky grader.
    """
    if "gold" not in subject.scripts:
        return skipped("No reply is known to be right.")
    cases = await answer_cases(subject)
    cases = [case for case in cases if (case.gold.reward or 0.0) > case.lowest + TOLERANCE]
    if not cases:
        return does_not_apply(NO_ANSWER)
    declared = subject.manifest.proctor.checks
    tallies: dict[str, VariantTally] = {}
    began, number = time.perf_counter(), 0
    lost: list[tuple[str, AnswerCase, Rollout]] = []
    flaky: list[Rollout] = []
    for case in cases:
        again = [AnswerVariant("the same again", ((case.answer,),))] * 4
        variants = equal_answers(case.answer, declared.free, declared.synonyms.get(case.answer, ()))
        if read_program(case.answer, case.prompt):
            variants = []
        transcripts = [case.replies(each.answers[0]) for each in (*again, *variants)]
        rollouts = await _recite_all(subject, "equal", case.task, transcripts, number)
        number += len(transcripts)
        for variant, rollout in zip((*again, *variants), rollouts, strict=True):
            if rollout is None or not rollout.is_completed:
                continue
            tally = tallies.setdefault(variant.name, VariantTally())
            tally.played += 1
            if (rollout.reward or 0.0) > case.limit:
                tally.rewarded.append((case, rollout))
            else:
                lost.append((variant.name, case, rollout))
        rewards = [rollout.reward or 0.0 for rollout in rollouts[:4] if rollout and rollout.is_completed]
        if rewards and max(rewards) - min(rewards) > subject.noise * 4 + TOLERANCE:
            flaky += [rollout for rollout in rollouts[:4] if rollout]
        if subject.should_stop() or time.perf_counter() - began > SECONDS:
            break
    played, kept = sum(t.played for t in tallies.values()), sum(len(t.rewarded) for t in tallies.values())
    if not played:
        return skipped("No right answer could be played again.")
    interval = wilson(kept, played)
    details: dict[str, object] = {
        "kept": kept,
        "played": played,
        "share": kept / played,
        "interval": [interval.low, interval.high],
        "variants": {name: [len(tally.rewarded), tally.played] for name, tally in tallies.items()},
        "survivors": [_described(*each) for each in lost[:MAX_SURVIVORS]],
    }
    evidence = f"{kept} of {played} repeated or rewritten right answers keep the reward."
    if flaky:
        rewards = [round(rollout.reward or 0.0, 4) for rollout in flaky[:4]]
        return failed(f"{evidence} The same right answer on {flaky[0].task.key} earned {rewards}.", flaky, **details)
    if lost:
        _, case, rollout = lost[0]
        return failed(
            f"{evidence} Lost: {listed(dict.fromkeys(name for name, _, _ in lost))}, e.g. on {case.task.key}:"
            f" {rollout.reward:.4g} instead of {case.gold.reward:.4g}.",
            [rollout for _, _, rollout in lost],
            **details,
        )
    return passed(evidence, **details)


def _once(text: str, turn: Turn) -> str:
    return "" if turn.index else text


@Check(
    label="Costly answers",
    sentence="Answers made to be slow to read are answered within the time limit, and none is rewarded.",
    advice="Bound the length of an answer before you parse it, and avoid nested repetitions in regular expressions.",
    example="""
    if len(answer) > 1000:
        return 0.0
    match = re.fullmatch(r"\\d+(?:,\\d+)*", answer)  # not (\\d+,?)+
    """,
    cost=Cost.EPISODES,
    needs=("steps_and_ends", "rewards_finite"),
)
async def costly_answers_bounded(subject: CheckSubject) -> CheckFinding:
    """Give nine answers that make careless graders slow: long repetitions, deep JSON, huge numbers, a power tower.

    They are written in the form of the right answer, if one is known. None may break the episode, exceed the step's
    time limit or earn more than a wrong answer may.
    """
    cases = await answer_cases(subject)
    costly = costly_answers()
    task = cases[0].task if cases else subject.tasks(2)[0]

    rollouts = []
    for number, (name, text) in enumerate(costly.items()):
        policy = recites(cases[0].replies((text,))) if cases else writes(partial(_once, text))
        for rollout in await subject.play("costly", policy, [(task, 1)], offset=number):
            rollouts.append((name, rollout))
        if subject.should_stop():
            break
    if not rollouts:
        return skipped("No costly answer could be played.")
    broken = [(name, rollout) for name, rollout in rollouts if not rollout.is_completed]
    if broken:
        name, rollout = broken[0]
        return failed(
            f"{len(broken)} of {len(rollouts)} costly answers broke the episode, e.g. {name}: {rollout.error_message}",
            [rollout for _, rollout in broken],
        )
    if cases and (cases[0].gold.reward or 0.0) > cases[0].lowest + TOLERANCE:
        limit = cases[0].limit
        if paid := [(name, rollout) for name, rollout in rollouts if (rollout.reward or 0.0) > limit]:
            name, rollout = paid[0]
            return failed(f"{name.capitalize()} earns {rollout.reward:.4g}.", [rollout for _, rollout in paid])
    slowest, slow = max(rollouts, key=lambda item: item[1].environment_seconds)
    seconds = slow.environment_seconds
    evidence = f"{len(rollouts)} costly answers: the slowest ({slowest}) took {seconds:.2f} s."
    if seconds > max(1.0, 0.5 * subject.timeout):
        return warned(evidence, [slow])
    return passed(evidence, [slow])


@Check(
    label="Repetition earns less",
    sentence="Repeating an action that does not end the episode earns less than solving the task.",
    advice="Reward progress once, and weigh the right answer above the sum of everything that can be repeated.",
    example="""
    rewards:
      solved: {weight: 1.0, range: [0, 1]}
      hints: {weight: 0.1, range: [0, 1]}  # all hints together stay below one solution
    """,
    cost=Cost.EPISODES,
    needs=("steps_and_ends", "rewards_finite"),
)
async def repetition_pays_less(subject: CheckSubject) -> CheckFinding:
    """Compare repeated actions, up to `max_turns` (64), with gold: the actions of `repeats_in_range` and a few texts.

    Fails if a repeated action earns as much as gold, or if repeating it before gold's replies earns 10% of gold's
    distance to the lowest reward more than gold; warns from half of gold. Gold's own last reply does not count.
    """
    if subject.manifest.proctor.episode.max_turns < 2:
        return does_not_apply("An episode has one turn: nothing can be repeated.")
    if "gold" not in subject.scripts:
        return skipped("No reply is known to be right, so there is nothing to compare a repetition with.")
    solved_by_gold = await subject.completed("gold")
    gold = [rollout.reward or 0.0 for rollout in solved_by_gold]
    if not gold:
        return skipped("No episode of gold completed.")
    best, lowest = fmean(gold), _lowest(subject)
    if best <= lowest + TOLERANCE:
        return skipped("Gold earns no more than the worst policy.")
    repeated = await played_repetitions(subject)
    alone = [each for each in repeated if not each.is_before_best]
    padded = [each for each in repeated if each.is_before_best]
    # the right answer itself may be given again and again
    right = {(repr(rollout.task), rollout.steps[-1].reply) for rollout in solved_by_gold if rollout.steps}
    reached = [
        each
        for each in alone
        if each.rollout.reward is not None
        and each.rollout.steps
        and (repr(each.rollout.task), each.rollout.steps[-1].reply) not in right
    ]
    if not reached:
        return skipped("No repeated action completed an episode.")
    ranked = sorted(reached, key=lambda each: -(each.rollout.reward or 0.0))
    top = ranked[0]
    earned = top.rollout.reward or 0.0
    share = (earned - lowest) / (best - lowest)
    evidence = (
        f"{len(repeated)} repetitions: the most rewarding, {top.name}, earns {earned:.4g} in {len(top.rollout.steps)}"
        f" turns; gold earns {best:.4g}."
    )
    details = {"gold": best, "repeated": earned, "action": top.name}
    columns = subject.manifest.columns
    *others, last = [weighted_reward(columns, step.rewards) for step in top.rollout.steps]
    solved = top.rollout.steps[-1].done and last > max(others, default=lowest) + TOLERANCE  # a lucky answer
    if share >= 1 - MARGIN and not solved:
        return failed(f"{evidence} Repeating it pays as much as solving the task.", [top.rollout], **details)
    more = [each for each in padded if (each.rollout.reward or 0.0) > max(gold) + 0.1 * (best - lowest)]
    if more:
        worst = max(more, key=lambda each: each.rollout.reward or 0.0)
        return failed(
            f"{evidence} {worst.name} earns {worst.rollout.reward:.4g}: repetitions pay on top of the right answer.",
            [each.rollout for each in more],
            **details,
        )
    if share >= 0.5 and not solved:
        return warned(
            f"{evidence} That is {share:.0%} of the distance from the lowest reward.", [top.rollout], **details
        )
    return passed(evidence, [top.rollout], **details)


@Check(
    label="Effort is rewarded",
    sentence="Without trying, no policy earns most of what the right answer earns.",
    advice="Move the reward from form, confidence or early endings to the right answer.",
    example="""
    @column
    def correct(self) -> float:
        if self._answer is None:  # gave up or ended early
            return 0.0
        return float(self._answer == self._expected)
    """,
    cost=Cost.EPISODES,
    needs=("steps_and_ends", "rewards_finite"),
)
async def effort_pays(subject: CheckSubject) -> CheckFinding:
    """Compare the thirteen policies that do not try with gold, whatever bounds are declared.

    Fails if the lower end of the interval of one of them is above 75% of the distance from the lowest reward to gold's,
    warns above 60%.
    """
    if "gold" not in subject.scripts:
        return skipped("No reply is known to be right.")
    gold = [rollout.reward or 0.0 for rollout in await subject.completed("gold")]
    if not gold:
        return skipped("No episode of gold completed.")
    played = {policy: await subject.completed(policy) for policy in DEGENERATE}
    estimates = {name: estimate_mean([r.reward or 0.0 for r in rollouts]) for name, rollouts in played.items()}
    means = {name: estimate for name, estimate in estimates.items() if estimate}
    best, lowest = fmean(gold), min((estimate.mean for estimate in means.values()), default=0.0)
    if best <= lowest + TOLERANCE:
        return failed(
            f"Gold earns {best:.4g}, no more than the worst policy that does not try.", played.get("empty", ())
        )
    doubtful, most = (lowest + share * (best - lowest) for share in EFFORT)
    if len({tuple(step.reply for step in rollout.steps) for rollout in await subject.completed("gold")}) == 1:
        for name in ("constant", "answer_list"):  # with one answer for all tasks, these two are perfect play
            means.pop(name, None)
    ranked = sorted(means, key=lambda name: -means[name].mean)
    top = ranked[0]
    evidence = (
        f"Gold earns {best:.4g}; without trying, `{top}` earns {means[top].mean:.4g}"
        f" ({(means[top].mean - lowest) / (best - lowest):.0%} of the distance from the lowest reward)."
    )
    shown = sorted(played[top], key=lambda rollout: -(rollout.reward or 0.0))
    if means[top].low > most + TOLERANCE:
        return failed(evidence, shown)
    if means[top].low > doubtful + TOLERANCE:
        return warned(evidence, shown)
    return passed(evidence, shown)
