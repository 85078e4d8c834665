"""Teachers of a distillation: they score the tokens that the student wrote.

A local teacher computes log-probabilities in this process. An endpoint returns those of a prompt: `/completions` with
`echo` and `logprobs`, as in OpenAI's first API and in vLLM.
"""

import asyncio
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import torch
from sqlalchemy import select
from transformers import PreTrainedTokenizerBase

from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import get_folder
from backend.core.outgoing import OutgoingPolicy
from backend.core.outgoing.client import BodyTooLarge, Redirected, open_session, read_body, reason_of
from backend.core.outgoing.errors import describe_error
from backend.core.session import transaction
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.distillation import DistillationChoice, reverse_kl, teacher_advantages
from backend.domain.vocabulary import PolicyKind
from backend.policies.service import secret_of
from backend.policies.tables import Policy as PolicyRow
from workers.models.load import Loaded, ModelUnusable, load_base, load_folder
from workers.policies import make_endpoint
from workers.policies.openai_api import OVERLOADED, RETRYABLE, Endpoint
from workers.training.examples import TrainingExample, example_of

MAX_TOKENS = 16_384  # tokens, with padding, of one forward pass of a local teacher
MAX_RESPONSE_BYTES = 64_000_000
CONCURRENT = 16  # requests to an endpoint at a time
LOWEST = -100.0  # log-probability of a token that the teacher finds impossible
TEACHER_KL = "teacher_kl"
"""Metric of a rollout: its mean log π_student − log π_teacher, in nats per token."""

ScoreExamples = Callable[[Sequence[TrainingExample]], list[list[float]]]
"""The teacher's log-probability of each token of the completions."""


class TeacherUnusable(ModelUnusable):
    """The teacher cannot score the student's tokens."""


class LocalTeacher:
    def __init__(self, loaded: Loaded, student: PreTrainedTokenizerBase) -> None:
        """Raises TeacherUnusable if the student's tokens mean something else to the teacher."""
        self._model, tokenizer = loaded
        known = tokenizer.get_vocab()
        other = [token for token, id_ in student.get_vocab().items() if known.get(token) != id_]
        width = int(self._model.get_input_embeddings().weight.shape[0])
        if other or max(student.get_vocab().values()) >= width:
            raise TeacherUnusable(
                f"the teacher has another vocabulary than the student: {max(1, len(other)):,} of "
                f"{len(student.get_vocab()):,} tokens differ, such as {str(other[0] if other else '')[:40]!r}. Choose "
                "a teacher of the student's model family"
            )
        self._model.eval().requires_grad_(False)

    @torch.no_grad()
    def __call__(self, examples: Sequence[TrainingExample]) -> list[list[float]]:
        scores: list[list[float]] = [[] for _ in examples]
        by_length = sorted(range(len(examples)), key=lambda place: len(examples[place].tokens))
        while by_length:
            width = len(examples[by_length[-1]].tokens)
            batch = [by_length.pop() for _ in range(min(len(by_length), max(1, MAX_TOKENS // width)))]
            rows = [examples[place].tokens for place in batch]
            ids_BT = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=self._model.device)
            mask_BT = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=ids_BT.device)
            logits_BTV = self._model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False).logits[:, :-1].float()
            logprobs_BT = logits_BTV.log_softmax(-1).gather(2, ids_BT[:, 1:, None])[..., 0].clamp(min=LOWEST)
            for place, row_T in zip(batch, logprobs_BT.tolist(), strict=True):
                first = len(examples[place].prompt) - 1
                scores[place] = row_T[first : first + len(examples[place].completion)]
        return scores


class EndpointTeacher:
    def __init__(self, endpoint: Endpoint, student: PreTrainedTokenizerBase) -> None:
        self._endpoint, self._student = endpoint, student

    def __call__(self, examples: Sequence[TrainingExample]) -> list[list[float]]:
        return asyncio.run(self.score(examples))

    async def score(self, examples: Sequence[TrainingExample]) -> list[list[float]]:
        """Raises TeacherUnusable if the endpoint does not answer, or not with these tokens."""
        endpoint, slots = self._endpoint, asyncio.Semaphore(CONCURRENT)
        headers = {"Content-Type": "application/json", "User-Agent": "proctor"}
        headers |= {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
        allowed = OutgoingPolicy.only(endpoint.base_url) if endpoint.is_own else None
        async with open_session(seconds=endpoint.timeout_seconds, headers=headers, policy=allowed) as session:

            async def request(example: TrainingExample) -> list[float]:
                async with slots:
                    return await self._request(session, example)

            return list(await asyncio.gather(*map(request, examples)))

    async def _request(self, session: aiohttp.ClientSession, example: TrainingExample) -> list[float]:
        endpoint, url = self._endpoint, f"{self._endpoint.base_url.rstrip('/')}/completions"
        body = {
            "model": endpoint.model,
            "prompt": example.tokens,
            "max_tokens": 1,
            "temperature": 0,
            "echo": True,
            "logprobs": 1,
            "return_tokens_as_token_ids": True,
        }
        problem = ""
        for attempt in range(max(1, endpoint.attempts)):
            if attempt:
                await asyncio.sleep(min(30.0, endpoint.first_wait_seconds * 2**attempt))
            try:
                async with session.post(url, data=json.dumps(body).encode()) as response:
                    status, answer = response.status, await read_body(response, MAX_RESPONSE_BYTES)
                    problem = describe_error(status, response.headers, answer, secret=endpoint.key)
            except (Redirected, BodyTooLarge) as error:
                raise TeacherUnusable(f"the teacher's endpoint answered {error}") from error
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                problem = f"it cannot be reached: {reason_of(error)}"
                continue
            if status == 200:
                return read_scores(answer, example, self._student)
            if status not in RETRYABLE | OVERLOADED:
                break
        raise TeacherUnusable(
            f"the teacher's endpoint gave no log-probabilities of a prompt: {problem}. It needs /completions with echo "
            "and logprobs, as in vLLM"
        )


def read_scores(answer: bytes, example: TrainingExample, student: PreTrainedTokenizerBase) -> list[float]:
    """Return the log-probabilities of the completion. Raises TeacherUnusable for anything but those."""
    try:
        sent: Any = json.loads(answer)["choices"][0]["logprobs"]
        values, tokens = sent["token_logprobs"], sent["tokens"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise TeacherUnusable(
            "the teacher's endpoint gave no log-probabilities: it needs /completions with echo and logprobs, as in vLLM"
        ) from error
    count = len(example.tokens)
    if not isinstance(values, list) or not isinstance(tokens, list) or not count <= len(values) == len(tokens):
        length = len(values) if isinstance(values, list) else 0
        raise TeacherUnusable(
            f"the teacher's endpoint gave {length:,} log-probabilities for {count:,} tokens: it does not echo the "
            "prompt, or has another vocabulary than the student"
        )
    for id_, token in zip(example.tokens, tokens, strict=False):
        expected = {f"token_id:{id_}", student.decode([id_]), student.convert_ids_to_tokens(id_)}
        if token not in expected and "\ufffd" not in f"{token}{student.decode([id_])}":
            raise TeacherUnusable(
                f"the teacher has another vocabulary than the student: token {id_} is {str(token)[:40]!r} there. "
                "Choose a teacher of the student's model family"
            )
    scores = values[len(example.prompt) : count]
    if not all(isinstance(value, int | float) and math.isfinite(value) and value <= 1e-3 for value in scores):
        raise TeacherUnusable("the teacher's endpoint gave values that are no log-probabilities")
    return [max(LOWEST, min(0.0, float(value))) for value in scores]


def load_teacher(choice: DistillationChoice, student: PreTrainedTokenizerBase) -> ScoreExamples:
    """Return the teacher, checked with one token. Raises TeacherUnusable, ModelUnusable or ChatUnusable."""
    if choice.teacher == "endpoint":
        named = select(PolicyRow).where(PolicyRow.name == choice.endpoint.strip(), PolicyRow.deleted_at.is_(None))
        with transaction() as session:
            row = session.scalars(named).one_or_none()
            if row is None or row.kind is not PolicyKind.OPENAI_API:
                raise TeacherUnusable(f"there is no policy {choice.endpoint} with an endpoint")
            endpoint = make_endpoint(row.configuration, secret_of(row))
        teacher: ScoreExamples = EndpointTeacher(endpoint, student)
    elif choice.teacher == "base":
        teacher = LocalTeacher(load_base(choice.base), student)
    else:
        with transaction() as session:
            checkpoint = session.get(Checkpoint, choice.checkpoint) if choice.checkpoint else None
        if checkpoint is None or checkpoint.unusable:
            raise TeacherUnusable("the teacher's checkpoint was deleted")
        with tempfile.TemporaryDirectory(prefix="proctor-teacher-") as folder:
            loaded = load_folder(get_folder(checkpoint.artifact, Path(folder) / "weights"))
        teacher = LocalTeacher(loaded, student)
    end = int(student.eos_token_id)
    teacher([TrainingExample([end, end], [end], [1])])
    return teacher


def score_rollouts(teacher: ScoreExamples, rollouts: Sequence[Rollout], *, end: int, clip: float) -> list[list[float]]:
    """Return each completed rollout's advantages by token, and none for others. Sets the metric `teacher_kl`."""
    places = [place for place, rollout in enumerate(rollouts) if rollout.is_completed]
    examples = [example_of(rollouts[place], end=end) for place in places]
    advantages: list[list[float]] = [[] for _ in rollouts]
    for place, example, scores in zip(places, examples, teacher(examples), strict=True):
        own = rollouts[place].logprobs or []
        advantages[place] = teacher_advantages(own, scores, example.mask, clip)
        rollouts[place].metrics[TEACHER_KL] = reverse_kl(own, scores, example.mask)
    return advantages
