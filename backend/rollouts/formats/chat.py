"""SFT data: chat JSONL, or a folder for Hugging Face's `datasets`; TRL's SFTTrainer takes `messages` as they are."""

from collections.abc import Iterable, Iterator
from typing import IO

import orjson

from backend.rollouts.formats.huggingface import front_matter
from backend.rollouts.formats.streams import Plain, entry, write_lines, zip_to
from backend.rollouts.formats.table import write_rows

FILE = "data/train-00000-of-00001.parquet"


def write_jsonl(out: IO[bytes], conversations: Iterable[Plain]) -> Iterator[None]:
    yield from write_lines(out, (orjson.dumps(each) for each in conversations))


def write_folder(out: IO[bytes], conversations: Iterable[Plain], told: str) -> Iterator[None]:
    """A zip; `told` says how they were chosen."""
    import pyarrow as pa

    names = ("environment", "task", "run", "rollout")
    said = pa.struct([(name, pa.string()) for name in ("role", "content", "reasoning_content")])
    fields = [("messages", pa.list_(said)), ("reward", pa.float64()), *((name, pa.string()) for name in names)]
    with zip_to(out) as archive:
        with entry(archive, FILE) as file:
            yield from write_rows(file, pa.schema(fields), conversations)
        with entry(archive, "README.md") as file:
            file.write(card(told).encode())
    yield


def card(told: str) -> str:
    return f"""---
{front_matter(["train"], ["sft", "conversational", "proctor"])}---

# Conversations for supervised fine-tuning

Made by Proctor from rollouts of reinforcement-learning environments. `messages` holds chat messages with `role` and
`content`; `reward` is what the episode earned. No conversation occurs twice, whatever its white space.

{told}
"""
