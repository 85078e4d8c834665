"""What becomes of a stored rollout that was played again: scored as before seen from elsewhere, or played otherwise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from backend.domain.rollouts.divergence import Recorded, first_difference, first_unseen, prompts_of
from backend.domain.rollouts.regrading import DIVERGED_AT, REPLIES_ENDED, REPLIES_LEFT
from backend.domain.rollouts.rollout import Rollout
from backend.domain.text import json_text
from backend.domain.vocabulary import ErrorKind, RolloutStatus
from workers.rollouts.regrading import Replayed
from workers.storage.rescored_rollouts import Copy, Original, Play

NO_REPLIES = "No reply was stored with it, so there is nothing to play again."


@dataclass(frozen=True, slots=True)
class Rule:
    """By what a played rollout becomes a row."""

    columns: Sequence[str]
    """Of the target version."""
    version: str
    """The target's name, for sentences."""
    noise: float = 0.0
    takes_all: bool = False
    """Score also what the policy would not have played: a person wants it."""


def needs_conversation(replayed: Replayed, noise: float) -> bool:
    """Is the stored conversation needed, to see what the policy read or to cut it?"""
    if not replayed.rollout.is_completed:
        return False
    seems_other = first_unseen(replayed.episode.recorded, _as_stored(replayed.rollout), noise) is not None
    return seems_other or replayed.replies_left > 0


def rescored(replayed: Replayed, original: Original, messages: Sequence[Mapping[str, Any]] | None, rule: Rule) -> Copy:
    """The stored conversation with the target's rewards; failed where the target would have asked something else.

    `messages` is the conversation where it is needed.
    """
    rollout = replayed.rollout
    if not rollout.is_completed:
        return _broken(rollout, original)
    after = _as_stored(rollout)
    stored = replace(replayed.episode.recorded, prompts=prompts_of(messages or ()))
    unseen = first_unseen(stored, after, rule.noise)
    if unseen is None and replayed.replies_ended:
        unseen = len(after.steps)
    if unseen is not None and not rule.takes_all:
        return Copy(original, RolloutStatus.FAILED, error_kind=ErrorKind.ENVIRONMENT, error_message=_why(unseen, rule))
    metrics = dict(rollout.metrics) | _endings(replayed) | ({} if unseen is None else {DIVERGED_AT: unseen})
    return _scored(rollout, original, rule, metrics, _same_words(replayed, after, messages))


def replayed_anew(replayed: Replayed, original: Original, rule: Rule) -> Copy:
    """The new conversation, with the first step that went differently."""
    rollout = replayed.rollout
    if not rollout.is_completed:
        return _broken(rollout, original)
    after = _as_stored(rollout)
    difference = first_difference(replayed.episode.recorded, after, rule.noise)
    metrics = dict(rollout.metrics) | _endings(replayed)
    if difference is not None:
        metrics[DIVERGED_AT] = difference.step
    play = Play(after.steps, rollout.messages, after.opening, rollout.tokens_out, rollout.environment_seconds)
    return _scored(rollout, original, rule, metrics, play)


def silent(original: Original) -> Copy:
    """There are no replies."""
    return Copy(original, RolloutStatus.FAILED, error_kind=ErrorKind.POLICY, error_message=NO_REPLIES)


def still_failed(original: Original, kind: ErrorKind | None, message: str | None) -> Copy:
    """A rollout that had failed is a failed one again: coverage stays what it was."""
    told = f"The original failed: {message or 'without a message'}"
    return Copy(original, RolloutStatus.FAILED, error_kind=kind, error_message=told)


def _scored(rollout: Rollout, original: Original, rule: Rule, metrics: Mapping[str, float], play: Play) -> Copy:
    return Copy(
        original,
        RolloutStatus.COMPLETED,
        reward=rollout.reward,
        columns=[rollout.columns.get(name, 0.0) for name in rule.columns],
        stop_reason=rollout.stop_reason,
        metrics=metrics,
        play=play,
    )


def _broken(rollout: Rollout, original: Original) -> Copy:
    return Copy(
        original, RolloutStatus.FAILED, error_kind=rollout.error_kind, error_message=rollout.error_message or "stopped"
    )


def _endings(replayed: Replayed) -> dict[str, float]:
    """What became of the replies, where they and the episode do not end together."""
    found: dict[str, float] = {}
    if replayed.replies_ended:
        found[REPLIES_ENDED] = 1
    if replayed.replies_left > 0:
        found[REPLIES_LEFT] = replayed.replies_left
    return found


def _same_words(replayed: Replayed, after: Recorded, messages: Sequence[Mapping[str, Any]] | None) -> Play:
    """Steps as the target paid them, with the time that the policy took; the conversation as far as it was used."""
    stored = replayed.episode.recorded.steps
    kept = ("policy_seconds", "queue_seconds")
    steps = [
        {**step, **{name: old[name] for name in kept if name in old}}
        for step, old in zip(after.steps, stored, strict=False)
    ]
    conversation = _first_turns(messages or (), len(steps)) if replayed.replies_left > 0 else None
    return Play(steps, conversation, environment_seconds=replayed.rollout.environment_seconds)


def _first_turns(messages: Sequence[Mapping[str, Any]], turns: int) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for message in messages:
        found.append(message)
        turns -= message.get("role") == "assistant"
        if turns <= 0:
            break
    return found


def _as_stored(rollout: Rollout) -> Recorded:
    """As it will be read back, so that it can be held against what was stored."""
    steps = orjson.loads(json_text(rollout.steps))
    return Recorded(orjson.loads(json_text(rollout.opening)), steps, prompts_of(rollout.messages))


def _why(unseen: int, rule: Rule) -> str:
    where = f"before reply {unseen + 1}" if unseen else "at the beginning"
    return (
        f"{rule.version} goes another way {where}: the policy would have read something else there, so its stored"
        " replies say nothing about it. A replay shows the difference."
    )
