"""Reads pytest's XML reports: in CI a test may be skipped only for the want of a GPU, and some tests must have run."""

import sys
from pathlib import Path
from xml.etree import ElementTree

ALLOWED = "needs a GPU"


def main(reports: list[str]) -> int:
    cases = [case for report in reports for case in ElementTree.parse(Path(report)).getroot().iter("testcase")]
    skipped = {case: case.find("skipped") for case in cases}
    silent = [
        f"{case.get('classname')}.{case.get('name')}: {skip.get('message')}"
        for case, skip in skipped.items()
        if skip is not None and ALLOWED not in (skip.get("message") or "")
    ]
    browser = [case for case in cases if ".browser" in (case.get("classname") or "") and skipped[case] is None]
    if silent:
        sys.stdout.write("skipped in CI:\n" + "".join(f"  {line}\n" for line in silent))
    if not browser:
        sys.stdout.write("no browser test ran\n")
    return 1 if silent or not browser else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
