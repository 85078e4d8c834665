"""The safeguards report of a run as a model card tells it, in short."""

from collections import Counter
from collections.abc import Mapping

from backend.review.safeguards import AuditTold, EffortTold, RewardTold, Safeguards
from workers.training.exporting.markdown import table

_SAFEGUARDS = [
    "What was done so that the reward means what it says. Detectors look at every step of training; a flag is a",
    "suspicion, a verdict is a person's word. None of it shows what the policy does outside of this environment.",
]


def safeguards(report: Safeguards, episodes: int) -> list[str]:
    """In Markdown; `episodes` of the run."""
    certificate = report.certificate
    if certificate is None:
        told = "none: the environment's reward was never checked"
    else:
        told = f"{certificate.status} ({certificate.passed} of {certificate.total} checks passed)"
    if report.without_certificate:
        told += f"; trained without a passing one: {report.without_certificate}"
    rows = [
        ("environment certificate", told),
        ("judged episodes it replays", f"{report.fixtures_hack} hacks, {report.fixtures_honest} honest"),
        ("detectors that watched", ", ".join(sorted(report.watching)) or "none"),
        ("flags by detectors", _counted({each.id: each.flags for each in report.detectors})),
        ("flags that people confirmed", _counted({e.id: e.confirmed for e in report.detectors if e.confirmed})),
        ("verdicts by people", _counted(report.verdicts)),
        ("looked at by people", f"{sum(report.verdicts.values()):,} of {episodes:,} episodes"),
        ("blind sample of unflagged episodes", _audit(report.audit)),
        ("training reward as judged", _as_judged(report.reward)),
        ("effort scores", "; ".join(map(_effort, report.efforts)) or "none"),
        ("interventions", _counted(Counter(f"{each.name} ({each.action})" for each in report.interventions))),
        ("changed while it trained", ", ".join(each.name for each in report.changes) or "nothing"),
    ]
    return ["## Safeguards", "", *_SAFEGUARDS, "", *table(("", ""), rows), ""]


def _audit(audit: AuditTold) -> str:
    if not audit.looked_at:
        return f"{audit.drawn:,} drawn, none looked at: what was missed is unknown"
    rate = f"{audit.rate_low:.1%} to {audit.rate_high:.1%}"
    return f"{audit.hacks:,} hacks in {audit.looked_at:,} of {audit.unflagged:,} (95 %: {rate})"


def _effort(score: EffortTold) -> str:
    """What was scored, the verdict, the difference with its interval, and when."""
    told = f"{score.checkpoint}: {score.outcome or score.status}"
    if score.difference is not None and score.low is not None:
        told += f", area {score.difference:+.3f} ({score.low:.3f} to {score.high:.3f}) against {score.base}"
    return f"{told}, {score.ended_at or score.asked_at:%Y-%m-%d}"


def _as_judged(reward: RewardTold | None) -> str:
    if reward is None:
        return "nobody judged an episode"
    limits = "no interval" if reward.low is None else f"{reward.low:.3f} to {reward.high:.3f}"
    return f"{reward.judged:.3f} ({limits}) at step {reward.step}, {reward.trained:.3f} as trained"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
