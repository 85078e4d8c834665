"""Measure what the built-in environments and templates reward: mean reward of good, poor and degenerate policies.

Peer: none.
Units: mean reward per episode, by policy; checks of the certificate that do not pass; seconds per certificate.
Repeats: 1. The tasks of a certificate are fixed.

`gold`, `teacher`, `partial` and `wrong` are the environment's scripted policies; `constant` always gives the answer
that is most often right.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping

from backend.domain.environments.certificate import certificate_status
from backend.domain.environments.manifest import read_manifest
from backend.domain.environments.packages import MANIFEST_PATH, content_hash
from backend.domain.statistics import estimate_mean
from backend.domain.vocabulary import CheckStatus
from backend.environments.library import TEMPLATES, library_names, load_package, render_template
from backend.settings import get_settings
from benchmarks.harness import Measure, Options, installation
from workers.environments.checks.base import by_level
from workers.environments.checks.registry import run_checks
from workers.environments.checks.subject import CheckSubject
from workers.environments.client import EnvHost

REPEATS = 1
POLICIES = ("gold", "teacher", "partial", "wrong", "random", "constant")


def measure(options: Options) -> Iterator[Measure]:
    packages = {name: load_package(name) for name in library_names()}
    packages |= {f"template {each.name}": render_template(each.name, "fresh") for each in TEMPLATES}
    with installation():
        for name in list(packages)[: options.size(len(packages), 2)]:
            yield from asyncio.run(_certify(name, packages[name]))


async def _certify(name: str, files: Mapping[str, str]) -> list[Measure]:
    """Run the package's certificate once, and read the rewards from the episodes it played."""
    manifest, hash_ = read_manifest(files[MANIFEST_PATH]), content_hash(files)
    resources = manifest.proctor.resources
    async with EnvHost(get_settings().envhost_address) as host:
        await host.prepare(hash_, files)
        async with host.lease(hash_, resources) as server:
            subject = CheckSubject(
                manifest,
                server,
                files=files,
                second_process=lambda: host.lease(hash_, resources),
                branch_recorder=lambda: host.lease(hash_, resources, branches=True),
            )
            began = time.perf_counter()
            results = await run_checks(subject, on_begin=lambda check: None, on_result=lambda result: None)
            seconds = time.perf_counter() - began
            known = [policy for policy in POLICIES if policy in subject.scripts or policy in {"random", "constant"}]
            played = {policy: await subject.completed(policy) for policy in known}
    counted = [result for result in results if result.applies]
    not_passed = [result.check for result in counted if result.status is not CheckStatus.PASSED]
    note = f"certificate {certificate_status(results)}. {', '.join(not_passed)}".rstrip(". ")
    measures = [
        Measure(f"{name}: checks not passed", f"of {len(counted)}", [len(not_passed)], note=note),
        Measure(f"{name}: time of the certificate", "s", [seconds]),
    ]
    for policy, rollouts in played.items():
        means = [group.mean for group in by_level(rollouts).values()]
        note = f"levels {', '.join(f'{mean:.2f}' for mean in means)}" if 1 < len(means) <= 5 else ""
        if estimate := estimate_mean([rollout.reward or 0.0 for rollout in rollouts]):
            measures.append(Measure(f"{name}: {policy}", "reward", [estimate.mean], note=note))
    return measures
