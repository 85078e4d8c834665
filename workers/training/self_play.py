"""Self-play: training episodes against past checkpoints of the run, drawn from its league by Elo."""

import random
from collections.abc import Sequence

import torch
from sqlalchemy import update

from backend.checkpoints.tables import Checkpoint
from backend.core.session import transaction
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.configuration import Stage
from backend.domain.training.self_play import League, LeagueMember
from backend.domain.vocabulary import Phase
from backend.training.league import league_of
from workers.models.load import Loaded
from workers.models.policy import LocalPolicy
from workers.models.sampling import Sampler
from workers.rollouts.engine import GroupPlan
from workers.rollouts.seats import SeatAssignment, SeatPolicy, own_seat
from workers.training.context import TrainingContext
from workers.training.sampler import training_policy


class SelfPlay:
    """Plays the groups of each step against opponents, one for all members of a group, and rates them.

    The league after each step is stored in the run's curves, so a resumed run draws the same opponents.
    """

    def __init__(self, context: TrainingContext, start: Checkpoint, reached: int) -> None:
        """`start`: the checkpoint that the stage starts from, which is the first opponent."""
        self._context, self._start, self._choice = context, start, context.configuration.self_play
        with transaction() as session:
            stored = league_of(session, context.assignment.run_id, reached, self._choice.opponents) if reached else None
        self.league = stored or League([LeagueMember(_name_of(start))], most=self._choice.opponents)
        self._opponents: dict[str, LocalPolicy] = {}
        self._left: list[tuple[int, str]] = []
        """Members that left, with their last step. A resumed run may need them until a later state is saved."""
        names = ", ".join(member.name for member in self.league.members)
        context.recorder.log(f"self-play against {names}; a checkpoint joins every {self._choice.every} steps")

    def play(self, step: int, plans: Sequence[GroupPlan], policy: LocalPolicy) -> list[Rollout]:
        """Play the plans against the drawn opponents; return the rollouts in their order."""
        seed, league = self._context.configuration.seed, self.league
        drawn = {plan.ordinal: league.draw(random.Random(f"{seed}/{step}/{plan.ordinal}")).name for plan in plans}
        for name in sorted(set(drawn.values())):
            opponent = self._opponents.get(name) or self._load(name, policy)
            opponent.sampler.temperature = policy.sampler.temperature

        def assign(rollout: Rollout) -> SeatAssignment:
            manifest = self._context.assignment.envs[0].manifest
            assert manifest.proctor.seats is not None
            seat, name = own_seat(manifest, rollout), drawn[rollout.group]
            taken = SeatPolicy(name, self._opponents[name])
            return SeatAssignment(seat, {other: taken for other in manifest.proctor.seats.names if other != seat})

        return self._context.env_pool.play_in_lockstep(
            plans, policy, phase=Phase.TRAIN, seed=seed, training_step=step, seats=assign
        )

    def learn(self, step: int, rollouts: Sequence[Rollout], loaded: Loaded) -> dict[str, float]:
        """Rate a step's games; a checkpoint of `loaded` joins when it is due. Returns the points of the curves."""
        games = []
        for rollout in rollouts:
            if rollout.seats is not None and rollout.seats.score is not None and rollout.is_completed:
                games.append((rollout.seats.others[0].policy, rollout.seats.score))
        self.league.record(games)
        if step % self._choice.every == 0:
            checkpoint = self._context.store.save(Stage.GRPO, step, *loaded)
            left = self.league.join(_name_of(checkpoint))
            self._keep(checkpoint, is_kept=True)
            for name in left:
                if (opponent := self._opponents.pop(name, None)) is not None:
                    opponent.withdraw()
                    self._context.env_pool.close_policy(opponent)
                self._left.append((step, name))
            leaving = f"; {', '.join(left)} leaves" if left else ""
            self._context.recorder.log(f"self-play: {_name_of(checkpoint)} joins the opponents{leaving}")
        while self._left and step - self._left[0][0] > self._context.configuration.checkpoints.every:
            self._keep(self._find(self._left.pop(0)[1]), is_kept=False)
        return self.league.figures()

    def close(self) -> None:
        for opponent in self._opponents.values():
            self._context.env_pool.close_policy(opponent)

    def _load(self, name: str, policy: LocalPolicy) -> LocalPolicy:
        """Load a member of the league as a partner of the policy in training."""
        with torch.random.fork_rng():  # training is the same whether or not an opponent is loaded again after a resume
            model, tokenizer = self._context.store.load(self._find(name), "opponents")
        model.eval().requires_grad_(False)
        assert isinstance(policy.sampler, Sampler)  # vLLM is refused with self-play
        if model.device != policy.sampler.model.device:
            model.to(policy.sampler.model.device)
        self._opponents[name] = opponent = training_policy(self._context.configuration, (model, tokenizer))
        opponent.join(policy)
        return opponent

    def _find(self, name: str) -> Checkpoint:
        if name == _name_of(self._start):
            return self._start
        stage, _, step = name.partition(" ")
        checkpoint = self._context.store.find(Stage(stage), int(step))
        assert checkpoint is not None, name
        return checkpoint

    def _keep(self, checkpoint: Checkpoint, *, is_kept: bool) -> None:
        """Mark the weights of an opponent, so that the run's rule does not prune them."""
        with transaction() as session:
            session.execute(update(Checkpoint).where(Checkpoint.id == checkpoint.id).values(is_kept=is_kept))


def _name_of(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.stage} {checkpoint.step}"
