"""Folders for Hugging Face's `datasets.load_dataset`: Parquet files and a card, for rollouts and for SFT data."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO

from backend.domain.vocabulary import Split
from backend.rollouts.formats import native
from backend.rollouts.formats.streams import Record, RunFacts, entry, zip_to

_FILE = "data/{split}-00000-of-00001.parquet"


def write(
    out: IO[bytes], facts: RunFacts, splits: Sequence[Split], records: Callable[[Split], Iterable[Record]]
) -> Iterator[None]:
    """Write a zip with the splits of the tasks, so that no held-out task is taken for training data."""
    weights = ", ".join(f"`{name}` × {weight:g}" for name, weight in zip(facts.columns, facts.weights, strict=True))
    where = f"\nOnly rollouts with `{plain_line(facts.where)}`.\n" if facts.where else ""
    card = f"""---
{_front_matter(splits, ["rollouts", "reinforcement-learning", "proctor"])}---

# Rollouts of {plain_line(facts.policy)} in {facts.environment}

Exported by Proctor {facts.proctor} from the run "{plain_line(facts.name)}" ({facts.id}): environment
{facts.environment}, version {facts.version} (`{facts.content_hash[:12]}`).
{where}
Each row is one episode. `messages` is the conversation, `reward` the weighted sum of `columns` ({weights or "none"}).
A row with the `status` `failed` broke in the infrastructure. Its reward is null and must not be read as zero.
`metrics`, `opening`, `steps` and `tokens` are JSON. `task_split` is the split of the task.
"""
    with zip_to(out) as archive:
        for split in splits:
            with entry(archive, _FILE.format(split=split)) as file:
                yield from native.write_parquet(file, facts, records(split))
        with entry(archive, "README.md") as file:
            file.write(card.encode())
    yield


def write_sft_folder(out: IO[bytes], conversations: Iterable[Record], selection: str) -> Iterator[None]:
    """Write SFT data as a zipped folder. `selection` describes how the conversations were chosen."""
    import pyarrow as pa

    names = ("environment", "task", "run", "rollout")
    message = pa.struct([(name, pa.string()) for name in ("role", "content", "reasoning_content")])
    fields = [("messages", pa.list_(message)), ("reward", pa.float64()), *((name, pa.string()) for name in names)]
    card = f"""---
{_front_matter(["train"], ["sft", "conversational", "proctor"])}---

# Conversations for supervised fine-tuning

Made by Proctor from rollouts of reinforcement-learning environments. `messages` holds chat messages with `role` and
`content`; `reward` is the reward of the episode. Each conversation occurs once, compared without white space.

{selection}
"""
    with zip_to(out) as archive:
        with entry(archive, _FILE.format(split="train")) as file:
            yield from native.write_rows(file, pa.schema(fields), conversations)
        with entry(archive, "README.md") as file:
            file.write(card.encode())
    yield


def _front_matter(splits: Sequence[str], tags: Sequence[str]) -> str:
    files = "".join(f"      - split: {split}\n        path: data/{split}-*.parquet\n" for split in splits)
    listed = "".join(f"  - {tag}\n" for tag in tags)
    return f"configs:\n  - config_name: default\n    data_files:\n{files}tags:\n{listed}"


def plain_line(text: str) -> str:
    """A name as one line of Markdown, without characters that begin markup."""
    return " ".join(text.replace("`", "'").replace("<", "(").replace(">", ")").split())[:300]
