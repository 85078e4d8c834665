"""All benchmarks, one after the other, each in a process of its own: `python -m benchmarks [name …]`."""

import subprocess
import sys
from pathlib import Path

from rich.console import Console

SHARED = {"__init__", "__main__", "cpu", "installation", "storage", "table_rows", "training_runs"}
SHARED |= {"detectors_hacks", "detectors_proof", "detectors_honest"}
SHARED |= {"mastery_games", "mastery_runs", "mastery_table"}
SHARED |= {"intervention_onset", "intervention_table"}
"""Modules that measure nothing by themselves."""
LONG = {"curriculum", "intervention", "mastery", "screening"}
"""An hour and more: only when asked for by name."""


def main() -> int:
    console = Console(soft_wrap=True)
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in SHARED | LONG)
    failed = []
    for name in sys.argv[1:] or names:
        console.rule(name)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode:
            failed.append(name)
    if failed:
        console.print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
