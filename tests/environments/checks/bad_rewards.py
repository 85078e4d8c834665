"""Environments as a newcomer writes them, each with one hole in its reward, and the same without the hole."""

from dataclasses import dataclass

from tests.detectors.query_desk import MANIFEST, PAID_ONCE, query_desk
from tests.envhost_fixture import package_files

QUIZ_MANIFEST = """\
spec_version: 1
name: quiz
app: server.app:app
proctor:
  agent:
    system: Answer the question with the number alone.
    observation: "{{ text }}"
    action: {format: text, field: text}
  rewards:
    answer: 1.0
    style: 1.0
  episode: {max_turns: TURNS, step_timeout_seconds: 5, episode_timeout_seconds: 20}
  tasks: {train: 100, heldout: 48}
  resources: {memory_mb: 256, sessions: 16}
"""
QUIZ_MODELS = """\
from openenv.core.env_server import Action, Observation


class QuizAction(Action):
    text: str = ""


class QuizObservation(Observation):
    text: str = ""
"""
QUIZ_APP = """\
from openenv.core.env_server import create_app

from models import QuizAction, QuizObservation
from server.quiz_environment import QuizEnvironment

app = create_app(QuizEnvironment, QuizAction, QuizObservation, env_name="quiz", max_concurrent_envs=16)
"""
QUIZ_ENVIRONMENT = """\
import random

from openenv.core.env_server import Environment, State

from models import QuizAction, QuizObservation


class QuizEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.answer, self.turns, self.paid, self.done = "", 0, False, False

    def reset(self, seed=None, episode_id=None, split="train", **arguments):
        rng = random.Random(f"{split}:{seed}")
        left, right = rng.randrange(100, 1000), rng.randrange(100, 1000)
        self.answer, self.turns, self.paid, self.done = str(left + right), 0, False, False
        return QuizObservation(text=f"What is {left} + {right}?")

    def step(self, action: QuizAction, timeout_s=None, **arguments):
        if self.done:
            raise RuntimeError("reset first")
        self.turns += 1
        text, hint, style = action.text.strip(), "Wrong.", 0.0
        is_right = text == self.answer
        done = is_right or self.turns >= TURNS
GRADE
        self.done = done
        rewards = {"answer": float(is_right), "style": style}
        return QuizObservation(text="Over." if done else hint, done=done, metadata={"rewards": rewards})

    @property
    def state(self):
        return State(answer=self.answer)
"""


def quiz(grade: str, turns: int = 1) -> dict[str, str]:
    """The package; `grade`: statements that may change `is_right`, `style`, `hint` and `done`."""
    files = package_files("quiz")
    del files["server/counter_environment.py"]
    lines = "\n".join(f"        {line}" for line in grade.splitlines())
    return files | {
        "openenv.yaml": QUIZ_MANIFEST.replace("TURNS", str(turns)),
        "models.py": QUIZ_MODELS,
        "server/app.py": QUIZ_APP,
        "server/quiz_environment.py": QUIZ_ENVIRONMENT.replace("GRADE", lines).replace("TURNS", str(turns)),
    }


@dataclass(frozen=True)
class Hole:
    bad: dict[str, str]
    sound: dict[str, str]
    check: str
    """The check that must fail."""
    says: str
    """A part of its evidence: the right reason."""


WIDE = MANIFEST.replace("query: {weight: 1.0, range: [0, 1]}", "query: {weight: 1.0, range: [0, 2]}")

HOLES = {
    "pays for each SELECT 1": Hole(
        query_desk(manifest=WIDE), query_desk(PAID_ONCE), "repetition_pays_less", "as much as solving the task"
    ),
    "pays partial credit again and again": Hole(
        quiz("style = 0.3 * (not is_right and text.isdigit())", turns=5),
        quiz("style = 0.3 * (done and not is_right and text.isdigit())",
            turns=5),
        "repetition_pays_less",
        "as much as solving the task",
    ),
    "pays for an early end": Hole(
        quiz('style = 5 - self.turns\ndone = done or not text.isdigit()\nstyle = style * done', turns=5),
        quiz('style = (5 - self.turns) / 5 * is_right', turns=5),
        "effort_pays",
        "without trying",
    ),
    "accepts any text that contains the answer": Hole(
        quiz("is_right = self.answer in text"),
        quiz("is_right = text.removesuffix('.').split()[-1:] == [self.answer]"),
        "wrong_answers_lose",
        "two answers",
    ),
    "believes praise": Hole(
        quiz("is_right = is_right or 'full marks' in text.lower() or 'correct' in text.lower()"),
        quiz("style = 0.0"),
        "wrong_answers_lose",
        "praise",
    ),
    "gives the answer away": Hole(
        quiz("hint = f'Wrong, it is {self.answer}.'", turns=3),
        quiz("hint = 'Try again.'", turns=3),
        "answer_hidden",
        "answer",
   
    ),
}  # fmt: skip
"""By the hole's name: six rewards that a policy would exploit."""
