"""Force answers from a checkpoint after part of its reasoning: `python -m workers.models.effort ID`."""

import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

import numpy as np
import structlog
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import get_folder
from backend.core.logs import configure_logging
from backend.core.session import transaction
from backend.domain.studies.effort import ReasonedReply, forced_prefix
from workers.models.chat import ChatTokens
from workers.models.load import ModelUnusable, load_folder
from workers.models.sampling import Row, Sampler, SamplingOptions
from workers.tasks.effort_cuts import ForcedAnswer, cut_side, load_side_work
from workers.tasks.execute import run_async

BATCH = 64  # answers sampled together
EXTRA_TOKENS = 16  # limit of a forced answer beyond twice the tokens of the original answer


class ModelCompleter:
    """A model in this process that continues from the middle of its own reply."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: Unpack[SamplingOptions]
    ) -> None:
        self.chat = ChatTokens(tokenizer)
        self._sampler = Sampler(model, end=self.chat.end, pad=tokenizer.pad_token_id, **options)

    def __call__(
        self,
        prompt: Sequence[Mapping[str, object]],
        reply: ReasonedReply,
        fractions: Sequence[float],
        *,
        samples: int,
        max_tokens: int,
        seed: int,
    ) -> list[list[ForcedAnswer]]:
        """An answer has at most twice the length of the reply's own, so that it cannot continue to reason."""
        encode = self.chat.tokenizer.encode
        opening = self.chat.opening(prompt)
        is_thinking = self.chat.text_of(opening[-8:]).rstrip().endswith("<think>")
        limit = min(max_tokens, 2 * len(encode(reply.answer, add_special_tokens=False)) + EXTRA_TOKENS)
        prefixes = [forced_prefix(reply, fraction, is_thinking=is_thinking) for fraction in fractions]
        answers: list[list[ForcedAnswer]] = [[] for _ in fractions]
        waiting: list[tuple[int, Row, int]] = []
        for place, prefix in enumerate(prefixes):
            tokens = [*opening, *encode(prefix, add_special_tokens=False)]
            room = self._sampler.context - len(tokens) - 1
            if room > 0:
                waiting += [
                    (place, Row(list(tokens), np.random.default_rng([seed, place, number])), min(limit, room))
                    for number in range(samples)
                ]
        for begin in range(0, len(waiting), BATCH):
            part = waiting[begin : begin + BATCH]
            sampled = self._sampler.sample([row for _, row, _ in part], [most for *_, most in part])
            for (place, _, _), each in zip(part, sampled, strict=True):
                answers[place].append(ForcedAnswer(prefixes[place], self.chat.text_of(each.tokens)))
            self._sampler.forget()
        return answers


def main() -> int:
    configure_logging("effort")
    disable_progress_bar()
    structlog.contextvars.bind_contextvars(side_id=sys.argv[1])
    torch.set_num_threads(1)
    work = load_side_work(uuid.UUID(sys.argv[1]))
    with transaction() as session:
        checkpoint = session.get(Checkpoint, work.side.checkpoint_id) if work.side.checkpoint_id else None
    if checkpoint is None or checkpoint.unusable:
        raise ModelUnusable((checkpoint and checkpoint.unusable) or "the checkpoint was deleted")
    with tempfile.TemporaryDirectory(prefix="proctor-model-") as folder:
        model, tokenizer = load_folder(get_folder(checkpoint.artifact, Path(folder) / "weights"))
        sampling = work.plan.sampling
        completer = ModelCompleter(model, tokenizer, temperature=sampling.temperature, top_p=sampling.top_p)
        run_async(cut_side(work, completer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
