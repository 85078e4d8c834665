"""Costs of the environment: errors, seconds and tokens per episode."""

import statistics
from collections import Counter

from backend.domain.vocabulary import ErrorKind
from workers.environments.checks.base import Check, CheckFinding, Cost, failed, passed, skipped, warned
from workers.environments.checks.policies import CHARACTERS_PER_TOKEN
from workers.environments.checks.subject import CheckSubject

LONG_PROMPT = 16_000
"""Prompt length in tokens that is too long for many models and expensive for all."""


@Check(
    label="Error rate",
    sentence="Fewer than 1% of episodes break, whatever the policy writes.",
    advice="Fix the most frequent error. Answer bad input with an observation instead of an exception.",
    example="""
    try:
        value = int(action.text)
    except ValueError:
        return self.rewarded(self._observe("Send a whole number."))  # an observation, not an exception
    """,
    cost=Cost.STORED,
)
async def error_rate(subject: CheckSubject) -> CheckFinding:
    """Count errors in all episodes, except where the chosen policy returned nothing. Warns above 1%, fails above 5%."""
    played = {
        name: [r for r in rollouts if name != "chosen" or r.error_kind is not ErrorKind.POLICY]
        for name, rollouts in subject.played.items()
    }
    played = {name: rollouts for name, rollouts in played.items() if rollouts}
    count = sum(map(len, played.values()))
    broken = [rollout for rollouts in played.values() for rollout in rollouts if not rollout.is_completed]
    if not broken:
        return passed(f"None of {count} episodes of {len(played)} policies broke.", share=0.0)
    share = len(broken) / count
    [(error, repeats)] = Counter(f"{r.error_kind}: {r.error_message}" for r in broken).most_common(1)
    worst = max(played, key=lambda name: sum(not rollout.is_completed for rollout in played[name]))
    evidence = (
        f"{len(broken)} of {count} episodes ({share:.1%}) broke, most with `{worst}`. Most often ({repeats}×)"
        f" {error[:300]}"
    )
    judge = failed if share > 0.05 else warned if share > 0.01 else passed
    return judge(evidence, broken, share=share)


@Check(
    label="Step latency",
    sentence="A step takes a small part of its time limit.",
    advice="Move expensive work out of `step`, or raise the manifest's timeout.",
    example="""
    DICTIONARY = load_words()  # once, when the module is imported; not in step

    # or, under proctor.episode in openenv.yaml
    step_timeout_seconds: 30
    """,
    cost=Cost.STORED,
)
async def step_latency(subject: CheckSubject) -> CheckFinding:
    """Time all steps. Warns unless 95% take at most a quarter of `step_timeout_seconds`."""
    rollouts = subject.all_completed()
    seconds = sorted(step.environment_seconds for r in rollouts for step in r.steps if step.action is not None)
    if not seconds:
        return skipped("No episode completed a step.")
    median, high = seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.95)]
    slowest = sorted(rollouts, key=lambda r: -max((step.environment_seconds for step in r.steps), default=0.0))
    summary = (
        f"{len(seconds)} steps: half within {median * 1000:.1f} ms, 95% within {high * 1000:.1f} ms, the slowest"
        f" {seconds[-1] * 1000:.0f} ms; the manifest allows {subject.timeout:g} s"
    )
    details = {"median": median, "p95": high, "slowest": seconds[-1]}
    if high > subject.timeout / 4:  # it would time out on a loaded machine
        return warned(f"{summary}: more than a quarter of that.", slowest, **details)
    return passed(f"{summary}.", slowest, **details)


@Check(
    label="Token cost",
    sentence="A correct answer fits into a turn, and a conversation into a context window.",
    advice="Shorten the observation, or raise `max_tokens_per_turn`.",
    example="""
    # openenv.yaml, under proctor.episode
    max_tokens_per_turn: 256  # the right answer needs up to 180
    """,
    cost=Cost.STORED,
)
async def token_cost(subject: CheckSubject) -> CheckFinding:
    """Estimate the tokens of gold's replies and prompts, four characters per token.

    Fails if a reply exceeds `max_tokens_per_turn`; warns for prompts above 16,000 tokens.
    """
    limit = subject.manifest.proctor.episode.max_tokens_per_turn
    gold = await subject.completed("gold") if "gold" in subject.scripts else []
    shown = gold or await subject.completed("random")
    if not shown:
        return skipped("No episode completed.")
    read, written, longest = [], [], 0.0
    for rollout in shown:
        prompt = rollout_read = rollout_written = 0.0
        for message in rollout.messages:
            size = len(str(message["content"])) / CHARACTERS_PER_TOKEN
            if message["role"] == "assistant":  # each turn reads the whole conversation so far
                rollout_read += prompt
                rollout_written += size
                longest = max(longest, prompt)
            prompt += size
        read.append(rollout_read)
        written.append(rollout_written)
    details = {"read": statistics.fmean(read), "written": statistics.fmean(written), "longest_prompt": longest}
    summary = (
        f"An episode of `{'gold' if gold else 'random'}` reads about {details['read']:,.0f} tokens (each turn reads the"
        f" whole conversation) and writes {details['written']:,.0f}; the longest prompt is about {longest:,.0f}"
    )
    too_long = [r for r in gold if any(len(s.reply) / CHARACTERS_PER_TOKEN > limit for s in r.steps)]
    if too_long:
        evidence = f"{len(too_long)} gold episodes have a reply longer than the limit of {limit} tokens per turn"
        return failed(f"{evidence}. {summary}.", too_long, **details)
    if longest > LONG_PROMPT:
        return warned(f"{summary}: more than {LONG_PROMPT:,}.", shown, **details)
    return passed(f"{summary}.", **details)
