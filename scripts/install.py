"""Fill a virtual environment: by uv in seconds, by pip where uv cannot.

python scripts/install.py PYTHON ARGUMENT… takes the arguments of `pip install` that both understand. uv is the one
beside the running interpreter, and looks where pip is configured to look.
"""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from workers.environments.pip_options import ask_pip, uv_options, uv_variables


def main(python: str, *arguments: str) -> int:
    told = ask_pip(python)
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
    variables = dict(os.environ) | uv_variables(told)  # noqa: TID251
    if subprocess.run([*uv, *uv_options(told), *arguments], env=variables, check=False).returncode == 0:
        return 0
    sys.stderr.write("uv could not; pip tries\n")
    return subprocess.run([python, "-m", "pip", "install", "-qq", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
