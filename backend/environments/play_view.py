"""A hand-played episode as a page and as JSON shows it."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from backend.domain.environments.manifest import ActionSpec, Manifest
from backend.domain.environments.play import PlayState
from backend.domain.rollouts.rollout import columns_over_episode, weighted_reward
from backend.domain.vocabulary import RunStatus
from backend.environments.action_form import ActionField, Choice, action_fields, legal_choices
from backend.environments.play_rows import get_play, rollout_of_play, task_of_play
from backend.environments.tables import Environment, EnvironmentVersion
from backend.policies.options import Mover, movers
from backend.rollouts.tables import Rollout, Task
from backend.runs.tables import Run
from backend.web.transcripts import Entry, transcript_of


@dataclass(frozen=True, slots=True)
class PlayView:
    """Everything about one episode, as of now."""

    run: Run
    environment: Environment
    version: EnvironmentVersion
    manifest: Manifest
    task: Task
    rollout: Rollout
    state: PlayState
    observation: Mapping[str, Any]
    """The newest that the environment gave."""
    text: str
    """The same as a model would read it; empty when the episode is over."""
    entries: Sequence[Entry]
    """The conversation up to the newest reply."""
    columns: Mapping[str, float]
    """Reward columns so far; those of the platform come at the end."""
    reward: float
    """So far."""
    fields: Sequence[ActionField]
    choices: Sequence[Choice]
    pending: str | None
    """A reply that the environment has not answered."""
    movers: Sequence[Mover]
    """Policies that may play on."""

    @property
    def spec(self) -> ActionSpec:
        return self.manifest.proctor.agent.action

    @property
    def foreign_moves(self) -> Mapping[str, list[int]]:
        """By the name of each policy that played here: its turns, counted from 1."""
        found: dict[str, list[int]] = {}
        for turn, author in enumerate(self.state.authors, start=1):
            if author:
                found.setdefault(author, []).append(turn)
        return found

    @property
    def is_over(self) -> bool:
        return self.run.status in {RunStatus.COMPLETED, RunStatus.STOPPED}

    @property
    def is_failed(self) -> bool:
        """The worker gave up; the replies are kept."""
        return self.run.status is RunStatus.FAILED

    @property
    def is_waiting(self) -> bool:
        return self.state.phase.is_waiting and not self.is_over and not self.is_failed


def play_view(session: Session, name: str, run_id: uuid.UUID) -> PlayView:
    """Raises NotFound."""
    run = get_play(session, name, run_id)
    rollout = rollout_of_play(session, run)
    state = PlayState.from_json(run.progress)
    manifest = Manifest.model_validate(run.version.manifest)
    spec = manifest.proctor.agent.action
    observation = _newest_observation(rollout)
    messages = list(rollout.messages)
    is_open = bool(messages) and messages[-1]["role"] == "user"
    text = str(messages.pop()["content"]) if is_open else ""
    columns = _columns(manifest, run, rollout)
    played = [step["reply"] for step in rollout.steps]
    return PlayView(
        run=run,
        environment=run.version.environment,
        version=run.version,
        manifest=manifest,
        task=task_of_play(session, run),
        rollout=rollout,
        state=state,
        observation=observation,
        text=text,
        entries=transcript_of(messages, rollout.steps, run.columns, weights=run.weights) if messages else [],
        columns=columns,
        reward=weighted_reward(manifest.columns, columns),
        fields=action_fields(spec, run.configuration.get("action_schema") or {}, {**rollout.opening, **observation}),
        choices=legal_choices(spec, observation),
        movers=movers(session, manifest) if run.status is RunStatus.RUNNING else (),
        pending=state.replies[-1] if len(state.replies) > len(played) else None,
    )


def _newest_observation(rollout: Rollout) -> Mapping[str, Any]:
    """A reply that was not understood has none of its own."""
    taken = [step for step in rollout.steps if step["action"] is not None]
    return taken[-1]["observation"] if taken else rollout.opening


def _columns(manifest: Manifest, run: Run, rollout: Rollout) -> dict[str, float]:
    if rollout.columns is not None:
        return dict(zip(run.columns, rollout.columns, strict=True))
    return columns_over_episode(manifest.columns, [step["rewards"] for step in rollout.steps])
