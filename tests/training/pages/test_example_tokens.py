"""How long conversations are for the model that a run starts from."""

import uuid
from pathlib import Path

from sqlalchemy.orm import Session

from backend.core.artifacts import put_folder
from backend.domain.training.configuration import ModelChoice
from backend.training.example_preview import token_measure
from tests.factories import make_checkpoint, make_policy

MESSAGES = [{"role": "user", "content": "Board?"}, {"role": "assistant", "content": "<move>4</move>"}]


def test_a_checkpoints_own_tokenizer_counts(session: Session, tmp_path: Path) -> None:
    from workers.models.build import build_model, build_tokenizer
    from workers.models.chat import ChatTokens

    tokenizer = build_tokenizer(["Board?", "<move>4</move>"] * 5, context=96)
    build_model(tokenizer, ModelChoice(context=96), seed=1).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    row = make_checkpoint(session, make_policy(session))
    put_folder(tmp_path, row.artifact)
    measure = token_measure(session, ModelChoice(source="checkpoint", checkpoint=row.id))
    assert measure.context == 96
    chat = ChatTokens(tokenizer)
    assert measure.count(MESSAGES) == len(chat.opening(MESSAGES[:1]) + chat.reply("<move>4</move>"))


def test_without_one_characters_are_counted(session: Session) -> None:
    for choice in (ModelChoice(context=128), ModelChoice(source="base", base="some/model")):
        assert token_measure(session, choice).count(MESSAGES) == 5
    gone = ModelChoice(source="checkpoint", checkpoint=uuid.uuid4())
    assert token_measure(session, gone).told == "estimated, 4 characters each"
    empty = make_checkpoint(session, make_policy(session))
    assert token_measure(session, ModelChoice(source="checkpoint", checkpoint=empty.id)).context is None
