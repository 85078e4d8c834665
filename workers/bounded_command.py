"""Set resource limits, then become another program. Uses only the standard library.

python bounded_command.py PARENT LIMITS COMMAND… takes a JSON object of resource limits by name (`AS`, `CPU`, …). The
command is killed when `PARENT`, the process that started it, ends.
"""

import ctypes
import json
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, limits: dict[str, int], command: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            sys.exit("the process that started this command has ended")
    for name, bound in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (value, value))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{os.path.basename(command[0])} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])
