"""Costs of the environment: errors, seconds and tokens per episode."""

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from backend.domain.rollouts.rollout import Rollout
from backend.domain.vocabulary import ErrorKind
from workers.environments.checks.base import Finding, check, failed, passed, skipped, warned
from workers.environments.checks.policies import CHARACTERS_PER_TOKEN
from workers.environments.checks.subject import Subject

ERRORS_WARN, ERRORS_FAIL = 0.01, 0.05
SLOW_SHARE = 0.25
"""Of the step's timeout: a step that takes longer will time out on a busy day."""
LONG_PROMPT = 16_000
"""Tokens of a prompt beyond which many models cannot follow, and none is cheap."""


@check(
    "error_rate",
    theme="cost",
    label="Error rate",
    sentence="Fewer than one episode in a hundred breaks, whatever the policy writes.",
    advice="Fix the most frequent error. Answer bad input with an observation instead of an exception.",
    needs=("steps_and_ends",),
)
async def error_rate(subject: Subject) -> Finding:
    """Over everything that the checks before have played, but where the chosen policy itself did not answer."""
    played = {name: found for name, rollouts in subject.played().items() if (found := _answered(name, rollouts))}
    everything = [rollout for rollouts in played.values() for rollout in rollouts]
    broken = [rollout for rollout in everything if not rollout.is_completed]
    share = len(broken) / max(1, len(everything))
    if not broken:
        return passed(f"None of {len(everything)} episodes of {len(played)} policies broke.", share=0.0)
    [(error, count)] = Counter(f"{r.error_kind}: {r.error_message}" for r in broken).most_common(1)
    worst = max(played, key=lambda name: sum(not rollout.is_completed for rollout in played[name]))
    told = (
        f"{len(broken)} of {len(everything)} episodes ({share:.1%}) broke, most with `{worst}`. Most often ({count}×)"
        f" {error[:300]}"
    )
    if share > ERRORS_FAIL:
        return failed(told, broken, share=share)
    return (warned if share > ERRORS_WARN else passed)(told, broken, share=share)


def _answered(name: str, rollouts: Sequence[Rollout]) -> list[Rollout]:
    return [rollout for rollout in rollouts if name != "chosen" or rollout.error_kind is not ErrorKind.POLICY]


@check(
    "step_latency",
    theme="cost",
    label="Step latency",
    sentence="A step takes a small part of its time limit.",
    advice="Move expensive work out of `step`, or raise the manifest's timeout.",
    needs=("steps_and_ends",),
)
async def step_latency(subject: Subject) -> Finding:
    rollouts = subject.all_rollouts()
    seconds = sorted(step.environment_seconds for r in rollouts for step in r.steps if step.action is not None)
    if not seconds:
        return skipped("No episode came as far as one step.")
    median, high = seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.95)]
    slowest = sorted(rollouts, key=lambda r: -max((step.environment_seconds for step in r.steps), default=0.0))
    told = (
        f"{len(seconds)} steps: half within {median * 1000:.1f} ms, 95 % within {high * 1000:.1f} ms, the slowest"
        f" {seconds[-1] * 1000:.0f} ms; the manifest allows {subject.timeout:g} s"
    )
    details = {"median": median, "p95": high, "slowest": seconds[-1]}
    if high > SLOW_SHARE * subject.timeout:
        return warned(f"{told}: more than a quarter of that.", slowest, **details)
    return passed(f"{told}.", slowest, **details)


@check(
    "token_cost",
    theme="cost",
    label="Token cost",
    sentence="A correct answer fits into a turn, and a conversation into a context window.",
    advice="Shorten the observation, or raise `max_tokens_per_turn`.",
    needs=("steps_and_ends",),
)
async def token_cost(subject: Subject) -> Finding:
    """Estimate tokens from characters, four per token. A correct reply must fit into the limit of a turn."""
    limit = subject.manifest.proctor.episode.max_tokens_per_turn
    gold = await subject.completed("gold") if "gold" in subject.scripts else []
    shown = gold or await subject.completed("random")
    if not shown:
        return skipped("No episode came to its end.")
    read, written, longest = [], [], 0.0
    for rollout in shown:
        costs = _tokens_of(rollout)
        read.append(costs[0])
        written.append(costs[1])
        longest = max(longest, costs[2])
    who = "gold" if gold else "random"
    told = (
        f"An episode of `{who}` reads about {statistics.fmean(read):,.0f} tokens (with every turn's whole conversation)"
        f" and writes {statistics.fmean(written):,.0f}; the longest prompt is about {longest:,.0f}"
    )
    details: dict[str, Any] = {
        "read": statistics.fmean(read),
        "written": statistics.fmean(written),
        "longest_prompt": longest,
    }
    too_long = [r for r in gold if any(len(s.reply) / CHARACTERS_PER_TOKEN > limit for s in r.steps)]
    if too_long:
        evidence = f"{len(too_long)} gold episodes hold a reply of more than the {limit} tokens that a turn may have"
        return failed(f"{evidence}. {told}.", too_long, **details)
    if longest > LONG_PROMPT:
        return warned(f"{told}: more than {LONG_PROMPT:,}.", shown, **details)
    return passed(f"{told}.", **details)


def _tokens_of(rollout: Rollout) -> tuple[float, float, float]:
    """(read over all turns, written, the longest prompt)"""
    so_far = read = written = longest = 0.0
    for message in rollout.messages:
        size = len(str(message["content"])) / CHARACTERS_PER_TOKEN
        if message["role"] == "assistant":
            read += so_far
            longest = max(longest, so_far)
            written += size
        so_far += size
    return read, written, longest
