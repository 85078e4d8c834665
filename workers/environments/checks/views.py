"""Do the manifest's views render what the environment observes?"""

from backend.domain.environments.views import ViewRenderer
from workers.environments.checks.base import Check, CheckFinding, Cost, does_not_apply, listed, passed, skipped, warned
from workers.environments.checks.subject import CheckSubject

OF_EACH = 4
"""Episodes of each policy, in addition to all fixtures."""


@Check(
    label="Views render",
    sentence="Every view that the manifest declares renders on the observations of real episodes.",
    advice="Open a rollout of the check: its page shows the reason in place of the view. In a template, use "
    "`{% if … %}` for fields that an observation may lack.",
    example="""
    view:
      - kind: markdown
        template: "{% if hint %}Hint: {{ hint }}{% endif %}"
    """,
    cost=Cost.STORED,
)
async def views_render(subject: CheckSubject) -> CheckFinding:
    """Render all views on every observation of the fixtures and of four episodes of each policy. Warns about each view
    that fails on one, or that never has content."""
    specs = subject.manifest.proctor.views
    if not specs:
        return does_not_apply("The manifest declares no view: pages show the text that the policy reads.")
    played = {name: [r for r in rollouts if r.is_completed] for name, rollouts in subject.played.items()}
    chosen = [r for name, rollouts in played.items() for r in (rollouts if name == "fixtures" else rollouts[:OF_EACH])]
    if not chosen:
        return skipped("No episode was completed.")
    wrong: dict[str, str] = {}
    shown, seen, count = [], set(), 0
    for rollout in chosen:
        steps = [{"action": step.action, "observation": step.observation} for step in rollout.steps]
        for number in range(-1, len(steps)):
            observation = steps[number]["observation"] if number >= 0 else rollout.opening
            action = steps[number]["action"] if number >= 0 else None
            count += 1
            for place, spec in enumerate(specs):
                name = spec.title or f"{spec.kind} ({place + 1})"
                for view in ViewRenderer([spec]).render(
                    observation or {}, action, rollout.opening, steps[: number + 1]
                ):
                    seen.add(name)
                    if view.problem and name not in wrong:
                        wrong[name] = f"{name} after {number + 1} turns: {view.problem}"
                        shown.append(rollout)
    names = [spec.title or f"{spec.kind} ({place + 1})" for place, spec in enumerate(specs)]
    wrong |= {name: f"{name} has no content in any of them" for name in names if name not in seen}
    if wrong:
        return warned(f"{len(wrong)} of {len(names)} views fail. {listed(wrong.values(), 3)}.", shown, wrong=wrong)
    return passed(f"{len(names)} views render on {count} observations of {len(chosen)} episodes: {listed(names)}.")
