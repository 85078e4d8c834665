"""All games between policies on an environment version: who beat whom, ratings, and round robins that fill the gaps."""

import uuid
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations

from sqlalchemy import select
from sqlalchemy.orm import Session, contains_eager, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.domain.environments.manifest import Manifest
from backend.domain.ids import new_id
from backend.domain.results.ratings import MIN_GAMES, Rating, rate
from backend.domain.runs.plans import EvaluationPlan, Opponent
from backend.domain.vocabulary import UNDER_WAY, PolicyKind, RunKind, Split
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict, InvalidInput
from backend.operations.schemas import Response
from backend.policies.queries import checkpoint_label, get_policy_option
from backend.policies.tables import Policy
from backend.results.leaderboard import Leaderboard
from backend.results.people import played_by_hand
from backend.results.schemas import StartRoundRobin
from backend.runs.evaluations import MAX_ROLLOUTS, start_evaluation
from backend.runs.schemas import EvaluationRequest
from backend.runs.tables import Run
from backend.web.audit import Requester

MAX_RUNS = 2000
"""Latest evaluations of a version that are considered."""
MAX_PLAYERS = 30
"""Policies in a table: those with the most games."""
Key = Hashable


class MatchPlayer(Response):
    """A policy with its results against all others."""

    name: str
    policy_id: uuid.UUID | None
    """Null for the environment's own script, unless a policy plays it."""
    checkpoint_id: uuid.UUID | None
    games: int
    wins: int
    draws: int
    losses: int
    score: float | None
    """(wins + draws / 2) / games; null without games."""
    rating: Rating
    """Elo rating with its 95% interval, or the reason why there is none."""


class MatchCell(Response):
    """The games of one policy against another."""

    wins: int = 0
    draws: int = 0
    losses: int = 0
    waiting: int = 0
    """Games of evaluations that have not ended."""
    run_id: uuid.UUID | None = None
    """The latest run."""

    @property
    def games(self) -> int:
        return self.wins + self.draws + self.losses

    @property
    def score(self) -> float | None:
        return (self.wins + self.draws / 2) / self.games if self.games else None


class MatchTable(Response):
    """Games between policies on an environment version, from all its evaluations and from play by hand."""

    environment: str
    version: int
    split: Split
    players: list[MatchPlayer]
    """Best rating first."""
    cells: list[list[MatchCell | None]]
    """In each row the games of one policy, against the policies in the same order. Null: they have not met."""


@dataclass(frozen=True, slots=True)
class _Player:
    key: Key
    name: str
    policy_id: uuid.UUID | None = None
    checkpoint_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class _Match:
    """Games of `one` against `other`."""

    one: _Player
    other: _Player
    run_id: uuid.UUID
    wins: int = 0
    draws: int = 0
    losses: int = 0
    waiting: int = 0


def matches_on(session: Session, board: Leaderboard) -> dict[str, object]:
    """Return what the template of a leaderboard shows of games. `matches` is None if the environment has no seats."""
    found = match_table(session, board.evaluated, Split(board.setup.split) if board.setup else Split.HELDOUT)
    rated = [player.rating.elo for player in found.players if player.rating.elo] if found else []
    ends = min((elo.low for elo in rated), default=0.0), max((elo.high for elo in rated), default=1.0)
    return {"matches": found, "ratings": ends, "least_games": MIN_GAMES}


def match_table(session: Session, version: EnvironmentVersion, split: Split = Split.HELDOUT) -> MatchTable | None:
    """Read the games of a version; None if its environment has no seats. An evaluation that was repeated with the same
    tasks and seed counts once."""
    manifest = version.typed_manifest
    if manifest.proctor.seats is None:
        return None
    cells: defaultdict[tuple[Key, Key], MatchCell] = defaultdict(MatchCell)
    players: dict[Key, _Player] = {}
    for match in _matches(session, version, manifest, split):
        players |= {match.one.key: match.one, match.other.key: match.other}
        there, back = cells[match.one.key, match.other.key], cells[match.other.key, match.one.key]
        for cell, wins, losses in ((there, match.wins, match.losses), (back, match.losses, match.wins)):
            cell.wins += wins
            cell.draws += match.draws
            cell.losses += losses
            cell.waiting += match.waiting
            cell.run_id = cell.run_id or match.run_id
    keys = list(players)
    games = {key: sum(cells[key, other].games for other in keys if (key, other) in cells) for key in keys}
    keys = sorted(keys, key=lambda key: -games[key])[:MAX_PLAYERS]
    none = MatchCell()
    won = tuple(tuple(cells.get((one, other), none).wins for other in keys) for one in keys)
    drawn = tuple(tuple(cells.get((one, other), none).draws for other in keys) for one in keys)
    rows = [
        _row(players[key], [cells[key, other] for other in keys if (key, other) in cells], rating)
        for key, rating in zip(keys, rate(won, drawn), strict=True)
    ]
    order = sorted(range(len(keys)), key=lambda place: _strength(rows[place]))
    return MatchTable(
        environment=version.environment.name,
        version=version.number,
        split=split,
        players=[rows[place] for place in order],
        cells=[[cells.get((keys[place], keys[other])) for other in order] for place in order],
    )


def start_round_robin(
    session: Session, actor: Requester, version: EnvironmentVersion, request: StartRoundRobin
) -> list[Run]:
    """Start an evaluation for each pair of the policies that has not played these tasks yet. All get the same tag."""
    manifest = version.typed_manifest
    seats = manifest.proctor.seats
    if seats is None:
        raise Conflict(f"{manifest.name} declares no seats: one policy plays each episode.")
    entrants: dict[Key, tuple[_Player, str]] = {}
    for text in request.policies:
        try:
            option = get_policy_option(session, text)
        except InvalidInput as error:
            raise InvalidInput(fields={"policies": f"{text[:80]}: {' '.join(error.fields.values())}"}) from error
        opponent = Opponent.model_validate(option)
        policy = session.get_one(Policy, uuid.UUID(opponent.policy_id))
        player = _player(policy, opponent.checkpoint_id, opponent.name)
        entrants[player.key] = player, opponent.key
    if len(entrants) < 2:
        raise InvalidInput(fields={"policies": "Choose two or more different policies."})
    pairs = list(combinations(entrants.values(), 2))
    if (total := len(pairs) * request.tasks * len(seats.names)) > MAX_ROLLOUTS:
        raise InvalidInput(fields={"tasks": f"{total:,} games; a round robin has at most {MAX_ROLLOUTS:,}."})
    played = set()
    for run in _evaluations(session, version):
        plan = EvaluationPlan.model_validate(run.configuration)
        if run.policy is not None and plan.opponent is not None and not plan.task_indexes_given:
            rival = session.get(Policy, uuid.UUID(plan.opponent.policy_id))
            one = _player(run.policy, run.checkpoint_id, "").key
            other = _player(rival, plan.opponent.checkpoint_id, "").key if rival else None
            covers = plan.first_task <= request.first_task and (
                request.first_task + request.tasks <= plan.first_task + plan.tasks
            )
            if covers and (plan.split, run.seed) == (request.split, request.seed):
                played.add(frozenset((one, other)))
    tag = f"round robin {str(new_id())[-6:]}"
    runs = []
    for (one, key), (other, opponent_key) in pairs:
        if frozenset((one.key, other.key)) in played:
            continue
        policy_id, _, checkpoint_id = key.partition(":")
        evaluation = EvaluationRequest(
            version_id=version.id,
            policy_id=uuid.UUID(policy_id),
            checkpoint_id=uuid.UUID(checkpoint_id) if checkpoint_id else None,
            opponent=opponent_key,
            **request.model_dump(include={"split", "tasks", "first_task", "seed", "temperature"}),
        )
        try:
            run = start_evaluation(session, actor, evaluation)
        except InvalidInput as error:
            ours = StartRoundRobin.model_fields
            texts = {name if name in ours else "policies": text for name, text in error.fields.items()}
            raise InvalidInput(fields=texts) from error
        run.tags = [tag]
        runs.append(run)
    if not runs:
        raise Conflict(
            "All of these policies have played each other on these tasks. Choose other tasks or another seed."
        )
    session.flush()
    return runs


def _evaluations(session: Session, version: EnvironmentVersion) -> Sequence[Run]:
    """Newest first."""
    statement = (
        select(Run)
        .join(Run.policy)
        .options(contains_eager(Run.policy), joinedload(Run.checkpoint).joinedload(Checkpoint.policy))
        .where(Run.version_id == version.id, Run.kind == RunKind.EVALUATION, Policy.kind != PolicyKind.EXTERNAL)
        .order_by(Run.created_at.desc(), Run.id.desc())
        .limit(MAX_RUNS)
    )
    return session.scalars(statement).all()


def _matches(session: Session, version: EnvironmentVersion, manifest: Manifest, split: Split) -> list[_Match]:
    """Newest first; those of people come last."""
    assert manifest.proctor.seats is not None
    script = _Player(("script", manifest.proctor.seats.others), manifest.proctor.seats.others)
    runs = [(run, EvaluationPlan.model_validate(run.configuration)) for run in _evaluations(session, version)]
    by_hand = played_by_hand(session, version.id, manifest, split)
    rivals = [plan.opponent for _, plan in runs] + [episode.opponent for episode in by_hand]
    wanted = {uuid.UUID(rival.policy_id) for rival in rivals if rival is not None}
    policies = {policy.id: policy for policy in session.scalars(select(Policy).where(Policy.id.in_(wanted)))}

    def rival_of(opponent: Opponent | None) -> _Player:
        if opponent is None:
            return script
        policy = policies.get(uuid.UUID(opponent.policy_id))
        if policy is None:
            return _Player((opponent.policy_id, opponent.checkpoint_id), opponent.name)
        return _player(policy, opponent.checkpoint_id, opponent.name)

    matches, known = [], set()
    for run, plan in runs:
        assert run.policy is not None
        if plan.split is not split:
            continue
        name = checkpoint_label(run.checkpoint) if run.checkpoint else run.policy.name
        one, other = _player(run.policy, run.checkpoint_id, name), rival_of(plan.opponent)
        setup = (frozenset((one.key, other.key)), plan.first_task, plan.tasks, plan.task_indexes_given, run.seed)
        if one.key == other.key or setup in known:
            continue
        result = run.summary.get("match")
        if run.status in UNDER_WAY:
            matches.append(_Match(one, other, run.id, waiting=plan.rollouts))
        elif isinstance(result, dict):
            totals = (sum(int(seat[name]) for seat in result["seats"]) for name in ("wins", "draws", "losses"))
            matches.append(_Match(one, other, run.id, *totals))
        else:
            continue
        known.add(setup)
    for episode in by_hand:
        if episode.score is not None:
            person, won = _player(episode.policy, None, episode.policy.name), episode.score
            counts = (int(won == 1), int(won == 0.5), int(won == 0))
            matches.append(_Match(person, rival_of(episode.opponent), episode.run_id, *counts))
    return matches


def _player(policy: Policy, checkpoint_id: object, name: str) -> _Player:
    """Scripted policies of one script are the same player, whatever they are called."""
    script = policy.configuration.get("script")
    if policy.kind is PolicyKind.SCRIPTED and not policy.configuration.get("constant"):
        return _Player(("script", script), name, policy.id)
    checkpoint = uuid.UUID(str(checkpoint_id)) if checkpoint_id else None
    return _Player((str(policy.id), str(checkpoint or "")), name, policy.id, checkpoint)


def _row(player: _Player, cells: Sequence[MatchCell], rating: Rating) -> MatchPlayer:
    wins, draws, losses = (sum(getattr(cell, name) for cell in cells) for name in ("wins", "draws", "losses"))
    games = wins + draws + losses
    return MatchPlayer(
        name=player.name,
        policy_id=player.policy_id,
        checkpoint_id=player.checkpoint_id,
        games=games,
        wins=wins,
        draws=draws,
        losses=losses,
        score=(wins + draws / 2) / games if games else None,
        rating=rating,
    )


def _strength(player: MatchPlayer) -> tuple[bool, float, str]:
    """Sorts the best first, those without a rating last by score."""
    elo = player.rating.elo
    return elo is None, -(elo.mean if elo else player.score or 0.0), player.name
