"""Read pytest's XML reports: a test that is skipped in all of them must have a reason that CI cannot fix."""

import sys
from pathlib import Path
from xml.etree import ElementTree

ALLOWED = (
    "needs a GPU",
    "convert_hf_to_gguf.py is not installed",
    "this CPU has no AVX-512 BF16",
    "no advisory source reachable",
)
"""No package index has llama.cpp's converter; the others depend on the machine and its network."""


def main(reports: list[str]) -> int:
    cases = [case for report in reports for case in ElementTree.parse(Path(report)).getroot().iter("testcase")]
    skipped = {case: case.find("skipped") for case in cases}
    ran = {_name(case) for case in cases if skipped[case] is None}
    excused = {_name(case) for case, skip in skipped.items() if skip is not None and _is_allowed(skip)}
    silent = [
        f"{_name(case)}: {skip.get('message')}"
        for case, skip in skipped.items()
        if skip is not None and _name(case) not in ran | excused
    ]
    browser = [name for name in ran if ".browser" in name]
    if silent:
        sys.stdout.write("skipped in CI:\n" + "".join(f"  {line}\n" for line in silent))
    if not browser:
        sys.stdout.write("no browser test ran\n")
    return 1 if silent or not browser else 0


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}.{case.get('name')}"


def _is_allowed(skip: ElementTree.Element) -> bool:
    return any(reason in (skip.get("message") or "") for reason in ALLOWED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
