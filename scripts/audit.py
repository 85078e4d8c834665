"""Compare every pinned release with published security advisories: `python scripts/audit.py [REPORT.xml]`.

Ends with 1 if an advisory applies. Where no advisory source is reachable, prints `pip-audit: SKIPPED` and ends with 0;
the report, in pytest's XML, shows the skip to `check_skips.py`.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.dependencies import ROOT

LOCKS = ("constraints.txt", "constraints-runtime.txt", "constraints-installers.txt")
"""The pins of everything that CI installs."""
GPU_LOCKS = ("constraints-gpu-vllm.txt", "constraints-gpu-unsloth.txt")
"""Audited after the others, if time is left."""
SOURCES = ("pypi", "osv")
SECONDS = 60.0
"""For everything together."""


class NoSource(Exception):
    """No advisory source answered; the message gives the reason."""


def main(arguments: Sequence[str]) -> int:
    deadline = time.monotonic() + SECONDS
    try:
        source, found = _first_answer(deadline)
    except NoSource as error:
        reason = f"no advisory source reachable ({error})"
        sys.stdout.write(f"pip-audit: SKIPPED: {reason}\n")
        _report(arguments, reason)
        return 0
    for lock in GPU_LOCKS:
        try:
            found |= _audited(lock, source, deadline)
        except NoSource as error:
            sys.stdout.write(f"pip-audit: SKIPPED for {lock}: {error}\n")
    for line in sorted(found):
        sys.stdout.write(f"{line}\n")
    sys.stdout.write(f"pip-audit: {len(found)} advisories apply (source: {source})\n")
    _report(arguments, "")
    return 1 if found else 0


def _first_answer(deadline: float) -> tuple[str, set[str]]:
    reasons = []
    for source in SOURCES:
        try:
            return source, set[str]().union(*(_audited(lock, source, deadline) for lock in LOCKS))
        except NoSource as error:
            reasons.append(f"{source}: {error}")
    raise NoSource("; ".join(reasons))


def _audited(lock: str, source: str, deadline: float) -> set[str]:
    """Return a line per advisory that applies."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(
            [*command, "--vulnerability-service", source, "--timeout", "8", "--requirement", str(ROOT / lock)],
            capture_output=True,
            text=True,
            timeout=max(0.1, deadline - time.monotonic()),
        )
    except subprocess.TimeoutExpired:
        raise NoSource(f"no answer within {SECONDS:.0f} s") from None
    return set(advisories(done.stdout, done.stderr))


def advisories(answer: str, errors: str) -> list[str]:
    """Read pip-audit's JSON. A source that knows fewer than half of the releases is no source."""
    try:
        releases = json.loads(answer)["dependencies"]
    except ValueError:
        last = errors.strip().splitlines()[-1:] or ["no answer"]
        raise NoSource(last[0][-120:].strip("()'\"")) from None
    known = [each for each in releases if "vulns" in each]
    if len(known) * 2 < len(releases):
        raise NoSource(f"it knows {len(known)} of {len(releases)} releases")
    return [
        f"{each['name']} {each['version']}: {vulnerability['id']}, "
        f"fixed in {', '.join(vulnerability['fix_versions']) or 'no release yet'}"
        for each in known
        for vulnerability in each["vulns"]
    ]


def _report(arguments: Sequence[str], skipped: str) -> None:
    if not arguments:
        return
    suite = ElementTree.Element("testsuite", name="audit")
    case = ElementTree.SubElement(suite, "testcase", classname="scripts.audit", name="advisories")
    if skipped:
        ElementTree.SubElement(case, "skipped", message=skipped)
    Path(arguments[0]).parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(arguments[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
