"""The stages before GRPO: the untrained policy, lessons from a script, imitation, and the gate."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from backend.artifacts import get_folder
from backend.db.models import Checkpoint
from backend.db.session import transaction
from backend.domain.prompts import render_unparsable
from backend.domain.rollouts import Rollout
from backend.domain.training import Stage
from backend.domain.vocabulary import Phase
from workers.models.build import build_model, build_tokenizer
from workers.models.chat import ChatTokens
from workers.models.load import load_base, load_folder
from workers.policies.scripted import ScriptedPolicy
from workers.training.demonstrations import demonstration_lessons, mixed
from workers.training.lessons import BrokenStep, Lesson, lesson_of
from workers.training.resume import newest_complete, step_of
from workers.training.tasks import warm_up_tasks
from workers.training.teacher import Teacher
from workers.training.trl_sft import SftRun, train_sft
from workers.training.workbench import Stopped, Workbench, single_groups

READING_EPISODES = 96
"""Scripted episodes whose text the tokenizer is made from."""


class GateClosed(Exception):
    """The warm-up did not reach what GRPO needs."""


def begin(bench: Workbench) -> Checkpoint:
    """The policy before training, as a checkpoint with its examination."""
    row = bench.store.find(Stage.UNTRAINED, 0)
    if row is None:
        model, tokenizer = _starting_weights(bench)
        ChatTokens(tokenizer)  # a template that cannot carry a conversation is refused here
        bench.store.save(Stage.UNTRAINED, 0, model, tokenizer)
        row = bench.store.find(Stage.UNTRAINED, 0)
        assert row is not None
    if not row.heldout:
        at = None if bench.configuration.recipe.has_sft else 0
        bench.examine(Stage.UNTRAINED, 0, *bench.store.load(row), at=at)
    return row


def _starting_weights(bench: Workbench) -> tuple[Any, Any]:
    choice = bench.configuration.model
    match choice.source:
        case "base":
            bench.recorder.progress(phase="loading the base model", done=0, total=1, message=choice.base)
            return load_base(choice.base)
        case "checkpoint":
            with transaction() as session:
                artifact = session.get_one(Checkpoint, choice.checkpoint).artifact
            return load_folder(get_folder(artifact, bench.assignment.folder / "start"))
        case _:
            tokenizer = build_tokenizer(_reading(bench), vocabulary=choice.vocabulary, context=choice.context)
            return build_model(tokenizer, choice, seed=bench.configuration.seed), tokenizer


def _reading(bench: Workbench) -> list[str]:
    """The environment's own text, from scripted play that is not stored."""
    bench.recorder.progress(phase="reading the environment's text", done=0, total=READING_EPISODES)
    manifest = bench.assignment.manifest
    texts: dict[int, list[str]] = {}

    def take(rollout: Rollout) -> None:
        texts[rollout.group] = [str(message["content"]) for message in rollout.messages]

    bench.arena.play(
        single_groups(warm_up_tasks(manifest, READING_EPISODES)),
        ScriptedPolicy(bench.configuration.sft.script),
        phase=Phase.WARM_UP,
        seed=bench.configuration.seed,
        on_rollout=take,
    )
    refusal = render_unparsable(manifest.proctor.agent.unparsable_message, "The reply is empty.")
    return [text for group in sorted(texts) for text in texts[group]] + [refusal] * (READING_EPISODES // 4)


def imitate(bench: Workbench, start: Checkpoint) -> Checkpoint:
    """SFT on the script's play; the checkpoint after it, examined."""
    row = bench.store.find(Stage.SFT)
    if row is None:
        row = _train(bench, start)
    if not row.heldout:
        bench.examine(Stage.SFT, row.step, *bench.store.load(row), at=0)
        row = bench.store.find(Stage.SFT)
        assert row is not None
    return row


def _train(bench: Workbench, start: Checkpoint) -> Checkpoint:
    choice, folder = bench.configuration.sft, bench.folder_of(Stage.SFT)
    model, tokenizer = bench.store.load(start)
    lessons = _lessons(bench, tokenizer)
    reached = step_of(newest_complete(folder))

    def on_step(step: int, figures: dict[str, float]) -> bool:
        nonlocal reached
        reached = step
        if figures:
            bench.recorder.metrics(step, {f"sft/{name}": value for name, value in figures.items()})
        bench.recorder.progress(phase="sft", done=step, total=choice.steps)
        return not bench.recorder.should_stop()

    bench.recorder.log(f"SFT: {choice.steps} steps of {choice.batch} out of {len(lessons):,} lessons")
    train_sft(
        SftRun(
            model=model,
            tokenizer=tokenizer,
            choice=choice,
            lessons=lessons,
            seed=bench.configuration.seed,
            folder=folder,
            save_every=max(bench.configuration.checkpoints.every, choice.steps // 10),
            on_step=on_step,
        )
    )
    if reached < choice.steps:
        raise Stopped
    bench.store.save(Stage.SFT, choice.steps, model, tokenizer)
    shutil.rmtree(folder, ignore_errors=True)
    row = bench.store.find(Stage.SFT)
    assert row is not None
    return row


def _lessons(bench: Workbench, tokenizer: Any) -> list[Lesson]:
    """The script's play as tokens: read back after a resume, else collected and stored as warm-up rollouts."""
    kept = bench.folder_of(Stage.SFT) / "lessons.jsonl"
    if kept.exists():
        return list(_read(kept))
    choice = bench.configuration.sft
    chat = ChatTokens(tokenizer)
    lessons: dict[int, Lesson] = {}
    failed = 0

    def take(rollout: Rollout) -> None:
        nonlocal failed
        if rollout.is_completed:
            lessons[rollout.group] = lesson_of(rollout, end=chat.end)
        else:
            failed += 1
        bench.recorder.progress(phase="collecting lessons", done=len(lessons) + failed, total=choice.episodes)

    bench.arena.play(
        single_groups(warm_up_tasks(bench.assignment.manifest, choice.episodes)),
        Teacher(choice.script, chat, noise=choice.noise),
        phase=Phase.WARM_UP,
        seed=bench.configuration.seed,
        recorder=bench.recorder,
        on_rollout=take,
        should_stop=bench.recorder.should_stop,
    )
    if len(lessons) + failed < choice.episodes:
        raise Stopped
    if len(lessons) < choice.episodes / 2:
        raise BrokenStep(f"{failed:,} of {choice.episodes:,} scripted episodes failed")
    ordered = [lessons[group] for group in sorted(lessons)]
    if choice.demonstrations:
        shown = demonstration_lessons(bench.assignment.version_id, chat)
        bench.recorder.log(f"{len(shown)} marked episodes make up {choice.demonstrations:.0%} of the lessons")
        ordered = mixed(ordered, shown, choice.demonstrations)
    _write(kept, ordered)
    return ordered


def _write(path: Path, lessons: list[Lesson]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(asdict(lesson)) + "\n" for lesson in lessons))
    partial.replace(path)


def _read(path: Path) -> Iterator[Lesson]:
    with path.open() as lines:
        for line in lines:
            yield Lesson(**json.loads(line))


def check_gate(bench: Workbench, row: Checkpoint) -> None:
    """Raises GateClosed with advice when GRPO would have nothing to learn from. A resumed run may pass."""
    gate, reached = bench.configuration.gate, row.heldout
    reward = row.heldout_reward
    problems = []
    if reached["format"] < gate.minimum_format:
        problems.append(f"only {reached['format']:.0%} of replies could be read (wanted: {gate.minimum_format:.0%})")
    if gate.minimum_reward is not None and (reward is None or reward < gate.minimum_reward):
        problems.append(f"the held-out reward is {reward or 0:.3f} (wanted: {gate.minimum_reward:g})")
    bench.summary["gate"] = {"is_open": not problems, "problems": problems}
    if not problems:
        return
    if bench.assignment.was_gate_closed:
        bench.recorder.log("the gate is closed, but the run was resumed: going on", "warning")
        return
    raise GateClosed(
        f"After the warm-up {' and '.join(problems)}. Warm up longer (sft.steps), on more episodes, or with another "
        "learning rate or seed; or resume this run to go on all the same."
    )
