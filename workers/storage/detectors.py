"""What detectors read and write: a run's stored rollouts, its context and settings, and flags."""

import asyncio
import heapq
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import orjson
from sqlalchemy import Row, Select, cast, func, select
from sqlalchemy.dialects.postgresql import JSONPATH, insert
from sqlalchemy.orm import Session, aliased, joinedload, undefer

from backend.checkpoints.tables import Checkpoint
from backend.core.events import REVIEW, announce, topic_of
from backend.core.session import transaction
from backend.detectors.learned import models_of
from backend.detectors.queries import active_settings_for
from backend.detectors.scans import COPIES, PHASES
from backend.detectors.schemas import AUTOMATIC_RUNS
from backend.detectors.tables import Flag
from backend.domain.detectors import run_view
from backend.domain.detectors.catalogue import unseen_inputs
from backend.domain.detectors.catalogue.metamorphic import SPEC, Altered, scan_altered
from backend.domain.detectors.catalogue.unseen_inputs import Generality, Submission, flag_of, judge, submission_of
from backend.domain.detectors.examples import ProgramAnswer
from backend.domain.detectors.settings import ActiveSettings, Threshold, override_thresholds
from backend.domain.detectors.spec import FlagDraft, finish_flags
from backend.domain.environments.manifest import Manifest, read_manifest
from backend.domain.environments.packages import MANIFEST_PATH, content_hash
from backend.domain.environments.reward_bounds import declared_ranges
from backend.domain.graders.settings import GraderKind
from backend.domain.ids import new_id
from backend.domain.results.pass_at_k import REWARD
from backend.domain.rollouts.divergence import RecordedEpisode
from backend.domain.rollouts.rollout import TaskSpec
from backend.domain.text import json_text, plain_text
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind, RunStatus
from backend.environments.library import load_internal_package
from backend.environments.tables import EnvironmentVersion
from backend.graders.tables import Grade, Grader
from backend.results.figures import rule_of
from backend.review.queue import place
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.queries import names_of, versions_of
from backend.runs.tables import Run
from backend.training.steering import thresholds_of_run
from workers.detectors.scanner import RunScanner
from workers.environments.client import EnvServer
from workers.rollouts.engine import StoredEpisode, replay_episodes
from workers.storage.env_host import serve
from workers.storage.learned_detectors import retrain_for_run
from workers.storage.rollouts import read_seats

ALTERED_CONCURRENCY = 8
"""Altered replies that are graded at the same time."""
PROGRAMS_CONCURRENCY = 4
"""Programs that run on unseen inputs at the same time."""
CANDIDATES = 4
"""Rollouts read for each program to run: some have no program, or a prompt without examples."""
MAX_PROGRAM_SECONDS = 900.0
"""Time for all programs of a scan. Programs that have not begun by then are not run."""
BATCH = 2000
"""Rollouts of an evaluation that are scanned together."""
_TASK = func.concat(Task.split, "/", Task.index).label("task")


@dataclass(frozen=True, slots=True)
class DetectorInput:
    """What detectors need to know about a run."""

    run_id: uuid.UUID
    phases: tuple[Phase, ...]
    """Empty if the run is not scanned."""
    context: run_view.EnvironmentContext
    environment_settings: Mapping[str, ActiveSettings]
    """Settings of detectors, without the run's own thresholds."""
    settings: Mapping[str, ActiveSettings]
    second_run_id: uuid.UUID | None
    """The latest completed run that scored this one's rollouts by another version."""
    second_columns: tuple[str, ...] = ()
    environments: Mapping[uuid.UUID, str] = field(default_factory=dict)
    """Environment names by version, if the run plays several."""
    automatic_runs: int = 0
    """Programs that a scan runs on unseen inputs if nothing else is requested."""


def load_detector_input(run_id: uuid.UUID, thresholds: Sequence[Threshold] = ()) -> DetectorInput:
    """`thresholds`: of one scan, on top of the run's own."""
    with transaction() as session:
        run = session.get_one(Run, run_id, options=[joinedload(Run.version).joinedload(EnvironmentVersion.environment)])
        versions = versions_of(session, run) if run.configuration.get("mix") else ()
        names = dict(zip(versions, names_of(versions), strict=True))
        context = _context_of_run(session, run, names)
        loaded = joinedload(Run.version).joinedload(EnvironmentVersion.environment)
        rescored = select(Run).where(
            Run.source_run_id == run.id,
            Run.kind.in_(COPIES),
            Run.status == RunStatus.COMPLETED,
            Run.version_id != run.version_id,
        )
        second = session.scalars(rescored.options(loaded).order_by(Run.created_at.desc()).limit(1)).one_or_none()
        if second is not None:
            other = Manifest.model_validate(second.version.manifest)
            name = f"{second.version.environment.name} v{second.version.number}"
            verifier = run_view.SecondVerifier(name, rule_of(second, other), declared_ranges(other))
            context = replace(context, second=verifier)
        played = {name: version.environment_id for version, name in names.items()}
        context = replace(context, learned=models_of(session, played or {"": run.version.environment_id}))
        settings = active_settings_for(session, run.version.environment_id)
        manifest = Manifest.model_validate(run.version.manifest)
        return DetectorInput(
            run_id=run_id,
            phases=PHASES.get(run.kind, ()),
            context=context,
            environment_settings=settings,
            settings=override_thresholds(override_thresholds(settings, thresholds_of_run(session, run)), thresholds),
            second_run_id=second.id if second else None,
            second_columns=tuple(second.columns) if second else (),
            environments={version.id: name for version, name in names.items()},
            automatic_runs=AUTOMATIC_RUNS if manifest.proctor.resources.execute else 0,
        )


def _context_of_run(session: Session, run: Run, names: Mapping[EnvironmentVersion, str]) -> run_view.EnvironmentContext:
    """`names`: the versions of a run on several environments. Its context is only what holds for all of them, with the
    success rule and the ranges of each."""
    has_steps = run.kind is RunKind.TRAINING
    manifest = Manifest.model_validate(run.version.manifest)
    if names or manifest.column_names != list(run.columns):
        manifests = {name: Manifest.model_validate(version.manifest) for version, name in names.items()}
        rules = {name: rule_of(run, each) for name, each in manifests.items()}
        ranges = {name: declared_ranges(each) for name, each in (manifests or {"": manifest}).items()}
        weights = dict(zip(run.columns, run.weights, strict=True))
        return run_view.EnvironmentContext(
            tuple(run.columns),
            weights,
            rules=rules,
            ranges=ranges,
            form_columns=run_view.form_columns(manifest, *manifests.values()),
            has_steps=has_steps,
        )
    context = run_view.context_of(manifest, run.version.files, has_steps=has_steps)
    checkpoint = session.get(Checkpoint, run.checkpoint_id) if run.checkpoint_id else None
    if run.kind is not RunKind.EVALUATION or checkpoint is None:
        # A training run has no base: what it never solved at first and always solves later, it learned.
        return context
    base_run_id = session.scalar(
        select(Run.id)
        .join(Checkpoint, Checkpoint.id == Run.checkpoint_id)
        .where(
            Run.kind == RunKind.EVALUATION,
            Run.status == RunStatus.COMPLETED,
            Run.version_id == run.version_id,
            Checkpoint.policy_id == checkpoint.policy_id,
            Checkpoint.created_at < checkpoint.created_at,
        )
        .order_by(Checkpoint.created_at, Run.created_at.desc())
        .limit(1)
    )
    rule = context.success
    if base_run_id is None or rule is None:
        return context
    value = Rollout.reward if rule.column == REWARD else Rollout.columns[context.columns.index(rule.column) + 1]
    statement = (
        select(_TASK, func.count(), func.count().filter(value >= rule.at_least - run_view.SAME_REWARD))
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .where(Rollout.run_id == base_run_id, Rollout.status == RolloutStatus.COMPLETED)
        .group_by(_TASK)
    )
    base = {task: run_view.BaseTask(plays, passed) for task, plays, passed in session.execute(statement)}
    return replace(context, base=base)


def heldout_results_of(run_id: uuid.UUID) -> list[run_view.HeldoutResult]:
    """The held-out evaluations of a training run after its warm-up, in order. The untrained model's has no step."""
    error = func.coalesce(func.stddev_samp(Rollout.reward), 0.0) / func.sqrt(func.count())
    statement = (
        select(Rollout.training_step, func.avg(Rollout.reward), error)
        .where(Rollout.run_id == run_id, Rollout.phase == Phase.HELDOUT, Rollout.status == RolloutStatus.COMPLETED)
        .where(Rollout.training_step.is_not(None))
        .group_by(Rollout.training_step)
        .order_by(Rollout.training_step)
    )
    with transaction() as session:
        return [
            run_view.HeldoutResult(step, float(reward), float(error))
            for step, reward, error in session.execute(statement)
        ]


def count_rollouts(run: DetectorInput) -> int:
    """Count the rollouts that `stored_steps` returns."""
    completed = (Rollout.phase.in_(run.phases), Rollout.status == RolloutStatus.COMPLETED)
    with transaction() as session:
        return session.scalar(select(func.count()).where(Rollout.run_id == run.run_id, *completed)) or 0


def stored_steps(run: DetectorInput) -> Iterator[tuple[int, list[run_view.RolloutRow]]]:
    """The completed rollouts of each training step; those of an evaluation in batches, as step 0."""
    if not run.context.has_steps:
        with transaction() as session:  # a server-side cursor: a run of any size is never loaded as a whole
            found = session.execute(_rollout_rows(run).execution_options(yield_per=BATCH))
            for part in found.partitions():
                yield 0, [_rollout_row(row, run) for row in part]
        return
    steps = select(Rollout.training_step).where(Rollout.run_id == run.run_id, Rollout.phase.in_(run.phases))
    with transaction() as session:
        numbers = session.scalars(steps.distinct().order_by(Rollout.training_step)).all()
    for step in numbers:
        statement = _rollout_rows(run).where(Rollout.training_step.is_not_distinct_from(step))
        with transaction() as session:
            rows = [_rollout_row(row, run) for row in session.execute(statement)]
        yield step or 0, rows


def _rollout_rows(run: DetectorInput) -> Select[*tuple[object, ...]]:
    """Load only the policy's part of each step and only the messages to the policy."""
    names = ("reply", "action", "rewards")
    written = {name: func.jsonb_path_query_array(Rollout.steps, cast(f"$[*].{name}", JSONPATH)) for name in names}
    to_policy = cast('$[*] ? (@.role == "user" || @.role == "tool").content', JSONPATH)
    judged = (
        select(Grade.rollout_id, func.avg(Grade.score).label("judge_score"))
        .join(Grader, Grader.id == Grade.grader_id)
        .where(Grade.run_id == run.run_id, Grader.kind == GraderKind.JUDGE, Grade.score.is_not(None))
        .group_by(Grade.rollout_id)
        .subquery()
    )
    statement = (
        select(
            Rollout.id,
            Rollout.group_id,
            _TASK,
            Task.version_id,
            Rollout.reward,
            Rollout.columns,
            Rollout.metrics,
            Rollout.tokens_out,
            Rollout.stop_reason,
            *(column.label(name) for name, column in written.items()),
            func.jsonb_path_query_array(Rollout.messages, to_policy).label("prompts"),
            judged.c.judge_score,
        )
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .outerjoin(judged, judged.c.rollout_id == Rollout.id)
        .where(Rollout.run_id == run.run_id, Rollout.phase.in_(run.phases), Rollout.status == RolloutStatus.COMPLETED)
        .order_by(Rollout.seq)
    )
    if run.second_run_id is None:
        return statement
    second = aliased(Rollout)
    is_rescored = (second.run_id == run.second_run_id) & (second.source_id == Rollout.id)
    columns = second.reward.label("second_reward"), second.columns.label("second_columns")
    return statement.outerjoin(second, is_rescored).add_columns(*columns)


def _rollout_row(found: Row[*tuple[object, ...]], run: DetectorInput) -> run_view.RolloutRow:
    row = run_view.RolloutRow(
        id=found.id,
        group=str(found.group_id),
        task=found.task,
        reward=found.reward,
        columns=dict(zip(run.context.columns, found.columns, strict=True)),
        replies=tuple(found.reply),
        tokens_out=found.tokens_out,
        stop_reason=found.stop_reason,
        actions=tuple(found.action),
        step_rewards=tuple(found.rewards),
        prompts=tuple(text for text in found.prompts if isinstance(text, str)),
        metrics=found.metrics,
        environment=run.environments.get(found.version_id, ""),
        judge_score=found.judge_score,
    )
    if run.second_run_id is None or found.second_reward is None:
        return row
    columns = dict(zip(run.second_columns, found.second_columns, strict=True))
    return replace(row, second_reward=found.second_reward, second_columns=columns)


def record_flags(run_id: uuid.UUID, drafts: Sequence[FlagDraft]) -> Counter[str]:
    """Store flags that are new, in a separate transaction. Returns their number by detector."""
    if not drafts:
        return Counter()
    with transaction() as session:
        return store_flags(session, run_id, drafts)


def store_flags(session: Session, run_id: uuid.UUID, drafts: Sequence[FlagDraft]) -> Counter[str]:
    """Store flags that are new and return their number by detector. A flag about a rollout that is not stored becomes
    one about its run."""
    named = {draft.rollout_id for draft in drafts if draft.rollout_id}
    stored = set(session.scalars(select(Rollout.id).where(Rollout.id.in_(named)))) if named else set()
    rows = [
        {
            "id": new_id(),
            "run_id": run_id,
            "rollout_id": draft.rollout_id if draft.rollout_id in stored else None,
            "detector": draft.detector,
            "key": draft.key[:120],
            "severity": draft.severity,
            "score": draft.score,
            "sentence": plain_text(draft.sentence),
            "evidence": orjson.loads(json_text(draft.evidence)),
            "training_step": draft.training_step,
            "cluster": draft.cluster,
        }
        for draft in drafts
    ]
    statement = insert(Flag).on_conflict_do_nothing(index_elements=["run_id", "detector", "key"])
    new = {row.id: row.detector for row in session.execute(statement.returning(Flag.id, Flag.detector), rows)}
    place(session, {row["rollout_id"] or row["id"] for row in rows if row["id"] in new})
    if new:
        announce(session, topic_of("run", run_id), REVIEW)
    return Counter(new.values())


def resume_scanner(run_id: uuid.UUID, *, before_step: int) -> RunScanner:
    """Return a scanner that has seen the stored training steps before this one and does not flag them again.

    The training process applies the run's own thresholds, because they may change between two steps.
    """
    retrain_for_run(run_id)
    run = load_detector_input(run_id)
    scanner = RunScanner(run.context, run.environment_settings)
    for step, rows in stored_steps(run):
        if step < before_step:
            scanner.view.add(step, rows)
    for result in heldout_results_of(run_id):
        if result.step < before_step:
            scanner.add_heldout(result)
    raised = select(Flag.detector, Flag.key).where(Flag.run_id == run_id, Flag.training_step < before_step)
    with transaction() as session:
        scanner.skip_raised([(detector, key) for detector, key in session.execute(raised)])
    return scanner


async def scan_altered_replies(run_input: DetectorInput, most: int) -> list[FlagDraft]:
    """Flag successful rollouts, at most `most`, whose altered replies still earn the reward."""
    settings = run_input.settings[SPEC.id]
    rows: list[run_view.RolloutRow] = []
    for _, step_rows in stored_steps(run_input):
        rows += [row for row in step_rows if row.meets(run_input.context.success)]
        if len(rows) >= most:
            break
    rows = rows[:most]
    if not settings.enabled or not rows:
        return []
    with transaction() as session:
        run = session.get_one(Run, run_input.run_id)
        version = session.get_one(EnvironmentVersion, run.version_id, options=[undefer(EnvironmentVersion.files)])
        statement = (
            select(Rollout.id, Rollout.steps, Rollout.tokens_out, Rollout.seats, Task)
            .join(Group, Group.id == Rollout.group_id)
            .join(Task, Task.id == Group.task_id)
            .where(Rollout.id.in_([row.id for row in rows]))
        )
        episodes: dict[uuid.UUID, StoredEpisode] = {}
        for row in session.execute(statement):
            task = TaskSpec(row.Task.split, row.Task.index, row.Task.level, row.Task.seed, row.Task.arguments)
            recorded = RecordedEpisode({}, row.steps)
            episodes[row.id] = StoredEpisode(
                row.id, task, recorded, tokens_out=row.tokens_out, seats=read_seats(row.seats)
            )
    manifest = Manifest.model_validate(version.manifest)
    async with serve(version.content_hash, version.files, manifest) as server:

        async def grade(altered: Sequence[Altered]) -> list[float | None]:
            changed = []
            for each in altered:
                episode = episodes[each.row.id]
                *before, last = episode.recorded.steps
                recorded = RecordedEpisode({}, [*before, {**last, "reply": each.reply}])
                changed.append(replace(episode, id=uuid.uuid4(), recorded=recorded))
            replayed = await replay_episodes(changed, server=server, manifest=manifest, concurrency=ALTERED_CONCURRENCY)
            rewards = {each.episode.id: each.rollout.reward for each in replayed}
            return [rewards.get(episode.id) for episode in changed]

        return await scan_altered(rows, manifest.proctor.agent.action, grade, settings.thresholds)


async def scan_by_runs(run_input: DetectorInput, most: int, report: Callable[[int, int], None]) -> list[FlagDraft]:
    """Run programs of the rollouts with the highest rewards, at most `most`, on inputs that the prompt does not show.

    Flags programs that solve only the shown inputs. They run in the env host's sandbox; other rollouts of a task show
    the usual answer. `report(done, total)` reports progress. Raises a RolloutError if no env host can be reached, or if
    it cannot isolate programs.
    """
    settings = run_input.settings[unseen_inputs.SPEC.id]
    if not settings.enabled or not most:
        return []
    rows = chain.from_iterable(rows for _, rows in stored_steps(run_input))
    chosen: dict[uuid.UUID, tuple[run_view.RolloutRow, Submission]] = {}
    for row in heapq.nlargest(CANDIDATES * most, rows, key=lambda row: row.reward):
        if len(chosen) < most and (submission := submission_of(row)):
            chosen[row.id] = row, submission
    if not chosen:
        return []
    files = load_internal_package("program_probe")
    answers: dict[uuid.UUID, list[ProgramAnswer]] = {}
    waiting = list(chosen.values())
    deadline = time.monotonic() + MAX_PROGRAM_SECONDS

    async def play(server: EnvServer) -> None:
        async with server.session() as session:
            await session.reset({}, timeout=60)
            while waiting and time.monotonic() < deadline:
                row, submission = waiting.pop()
                function = submission.task.function or ""
                action = {"source": submission.source, "function": function, "inputs": submission.inputs}
                found = (await session.step(action, timeout=90)).fields.get("answers") or []
                if len(found) == len(submission.inputs):
                    answers[row.id] = [ProgramAnswer(str(outcome), str(text)) for outcome, text in found]
                report(len(answers), len(chosen))

    async with serve(content_hash(files), files, read_manifest(files[MANIFEST_PATH])) as server:
        await asyncio.gather(*(play(server) for _ in range(min(PROGRAMS_CONCURRENCY, len(chosen)))))
    drafts = []
    for id_, given in answers.items():
        row, submission = chosen[id_]
        others = [
            answers[other]
            for other, (sibling, theirs) in chosen.items()
            if other != id_ and other in answers and sibling.task == row.task and theirs.inputs == submission.inputs
        ]
        judgment = judge(submission, given, settings.thresholds, others=others)
        if judgment.verdict is Generality.SPECIAL:
            drafts.append(flag_of(row, judgment))
    return finish_flags(unseen_inputs.SPEC, drafts, settings.thresholds)
