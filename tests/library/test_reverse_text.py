"""Text reversal: what is worth how much."""

import pytest

from backend.environments.library import load_package
from tests.library.conftest import Serve


@pytest.mark.parametrize(
    ("change", "similarity", "exact"),
    [
        (lambda text: text[::-1], 1.0, 1.0),
        (lambda text: text, 0.0, 0.0),
        (lambda text: "", 0.0, 0.0),
        (lambda text: text[::-1] * 20, 0.0, 0.0),
    ],
    ids=["reversed", "copied", "empty", "too long"],
)
async def test_only_reversing_pays(serve: Serve, change, similarity: float, exact: float):
    async with serve(load_package("reverse_text")) as server, server.session() as session:
        opening = await session.reset({"seed": 3, "split": "heldout", "level": 1, "index": 3}, timeout=10)
        answer = await session.step({"text": change(opening.fields["text"])}, timeout=10)
    assert answer.done
    assert answer.rewards == {"similarity": similarity, "exact": exact}


async def test_a_nearly_reversed_text_earns_most_of_it(serve: Serve):
    async with serve(load_package("reverse_text")) as server, server.session() as session:
        opening = await session.reset({"seed": 3, "split": "heldout", "level": 3, "index": 3}, timeout=10)
        answer = await session.step({"text": opening.fields["text"][::-1][1:]}, timeout=10)
    assert 0.9 < answer.rewards["similarity"] < 1.0


async def test_levels_have_more_words_and_splits_share_no_text(serve: Serve):
    texts = {}
    async with serve(load_package("reverse_text")) as server, server.session() as session:
        for split in ("train", "heldout"):
            texts[split] = set()
            for seed in range(60):
                for level, words in enumerate((2, 3, 5, 8)):
                    task = {"seed": seed, "split": split, "level": level, "index": seed}
                    text = (await session.reset(task, timeout=10)).fields["text"]
                    assert len(text.split()) == words
                    texts[split].add(text)
    assert not texts["train"] & texts["heldout"]
