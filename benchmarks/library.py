"""What the built-in environments pay: their certificate, and the mean reward of policies that do and do not try.

python -m benchmarks.library [NAME …] [--templates]
"""

import argparse
import asyncio
import time
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console

from backend.domain.environments.certificate import certificate_status
from backend.domain.environments.manifest import read_manifest
from backend.domain.environments.packages import MANIFEST_PATH, content_hash
from backend.domain.statistics import estimate_mean
from backend.domain.vocabulary import CheckStatus
from backend.environments.library import library_names, load_package, render_template, templates
from backend.settings import get_settings
from benchmarks.installation import installation
from workers.environments.checks.base import by_level
from workers.environments.checks.examine import examine
from workers.environments.checks.subject import Subject
from workers.environments.client import EnvHost

console = Console(soft_wrap=True)
SHOWN = ("gold", "teacher", "partial", "wrong", "random", "constant")
"""Policies as the certificate plays them; `constant` always gives the answer that is most often right."""
MANY_LEVELS = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One environment."""

    name: str
    certificate: str
    seconds: float
    means: dict[str, str]
    by_level: dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of built-in environments; all when none is given")
    parser.add_argument("--templates", action="store_true", help="measure the templates too")
    arguments = parser.parse_args()
    packages = {name: load_package(name) for name in arguments.names or library_names()}
    if arguments.templates:
        packages |= {f"template {t.name}": render_template(t.name, "fresh") for t in templates()}
    with installation():
        asyncio.run(_measure(packages))


async def _measure(packages: dict[str, dict[str, str]]) -> None:
    console.print(f"| environment | certificate | seconds | {' | '.join(SHOWN)} |")
    console.print("|---|---|---|" + "---|" * len(SHOWN))
    rows = []
    async with EnvHost(get_settings().envhost_address) as host:
        for name, files in packages.items():
            row = await _row(host, name, files)
            rows.append(row)
            means = " | ".join(row.means.get(policy, "") for policy in SHOWN)
            console.print(f"| `{row.name}` | {row.certificate} | {row.seconds:.1f} | {means} |")
    console.print("\nMean reward by level\n")
    for row in rows:
        for policy, told in row.by_level.items():
            console.print(f"- `{row.name}`, {policy}: {told}")


async def _row(host: EnvHost, name: str, files: dict[str, str]) -> Row:
    manifest, hash_ = read_manifest(files[MANIFEST_PATH]), content_hash(files)
    resources = manifest.proctor.resources
    await host.prepare(hash_, files)
    async with host.lease(hash_, resources) as server:
        subject = Subject(manifest, server, files=files, twin=lambda: host.lease(hash_, resources))
        begun = time.perf_counter()
        results = await examine(subject, on_begin=lambda check: None, on_result=lambda result: None)
        seconds = time.perf_counter() - begun
        known = [policy for policy in SHOWN if policy in subject.scripts or policy in {"random", "constant"}]
        played = {policy: await subject.completed(policy) for policy in known}
    counted = [result for result in results if result.applies]
    missed = [result.check for result in counted if result.status is not CheckStatus.PASSED]
    told = f"{certificate_status(results)}: {len(counted) - len(missed)} of {len(counted)}"
    estimates = {policy: estimate_mean([rollout.reward or 0.0 for rollout in played[policy]]) for policy in known}
    return Row(
        name,
        told + (f" (not {', '.join(missed)})" if missed else ""),
        seconds,
        {policy: f"{estimate.mean:.2f}" for policy, estimate in estimates.items() if estimate},
        {policy: _levels([e.mean for e in by_level(played[policy]).values()]) for policy in known},
    )


def _levels(means: list[float]) -> str:
    """Equal neighbours in one word when there are many."""
    texts = [f"{mean:.2f}" for mean in means]
    if len(texts) <= MANY_LEVELS:
        return ", ".join(texts)
    runs = [(text, len(list(same))) for text, same in groupby(texts)]
    return ", ".join(text if count == 1 else f"{count}x {text}" for text, count in runs)


if __name__ == "__main__":
    main()
