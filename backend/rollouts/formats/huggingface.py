"""A folder that Hugging Face's `datasets.load_dataset` reads: Parquet files by split, and a card that names them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO

from backend.domain.vocabulary import Split
from backend.rollouts.formats import table
from backend.rollouts.formats.facts import RunFacts
from backend.rollouts.formats.streams import Plain, entry, zip_to

Records = Callable[[Split], Iterable[Plain]]


def write(out: IO[bytes], facts: RunFacts, splits: Sequence[Split], records: Records) -> Iterator[None]:
    """A zip; its splits are those of the tasks, so that nothing held out is taken for training data."""
    with zip_to(out) as archive:
        for split in splits:
            with entry(archive, _file(split)) as file:
                yield from table.write(file, facts, records(split))
        with entry(archive, "README.md") as file:
            file.write(card(facts, splits).encode())
    yield


def _file(split: str) -> str:
    return f"data/{split}-00000-of-00001.parquet"


def card(facts: RunFacts, splits: Sequence[str]) -> str:
    weights = ", ".join(f"`{name}` × {weight:g}" for name, weight in zip(facts.columns, facts.weights, strict=True))
    where = f"\nOnly rollouts with `{plain_line(facts.where)}`.\n" if facts.where else ""
    return f"""---
{front_matter(splits, ["rollouts", "reinforcement-learning", "proctor"])}---

# Rollouts of {plain_line(facts.policy)} in {facts.environment}

Exported by Proctor {facts.proctor} from the run "{plain_line(facts.name)}" ({facts.id}): environment
{facts.environment}, version {facts.version} (`{facts.content_hash[:12]}`).
{where}
A row is one episode. `messages` is the conversation, `reward` the weighted sum of `columns` ({weights or "none"}).
A row whose `status` is `failed` broke in the infrastructure: its reward is null and must not be read as zero.
`metrics`, `opening`, `steps` and `tokens` are JSON. `task_split` says whether the task was held out.
"""


def front_matter(splits: Sequence[str], tags: Sequence[str]) -> str:
    files = "".join(f"      - split: {split}\n        path: data/{split}-*.parquet\n" for split in splits)
    named = "".join(f"  - {tag}\n" for tag in tags)
    return f"configs:\n  - config_name: default\n    data_files:\n{files}tags:\n{named}"


def plain_line(text: str) -> str:
    """A name in Markdown: one line without what would begin markup."""
    return " ".join(text.replace("`", "'").replace("<", "(").replace(">", ")").split())[:300]
