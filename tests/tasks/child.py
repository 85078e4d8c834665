"""The child process of the tests."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    match sys.argv[1:]:
        case ["say", word]:
            sys.stdout.write(f"{word}\n")
        case ["end", status]:
            sys.exit(int(status))
        case ["raise", message]:
            raise RuntimeError(message)
        case ["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["sleep", file]:
            grandchild = subprocess.Popen(["sleep", "60"])
            Path(file).write_text(f"{os.getpid()} {grandchild.pid}\n")
            time.sleep(60)
    return 0
