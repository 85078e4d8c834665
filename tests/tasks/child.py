"""The child process of the tests."""

import atexit
import ctypes
import faulthandler
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from workers.tasks import children


def report() -> dict[str, object]:
    """The system's and Python's view of this process."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    folder = os.open("/", os.O_RDONLY)  # the lowest free number
    os.close(folder)
    return {
        "variables": dict(os.environ),  # noqa: TID251
        "title": Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0"),
        "name": status["Name"],
        "parent": os.getppid(),
        "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
        "threads": status["Threads"],
        "user": [status[name] for name in ("Uid", "Gid", "Groups", "CapEff", "NoNewPrivs", "Umask")],
        "limits": Path("/proc/self/limits").read_text(),
        "niceness": os.nice(0),
        "memory": Path("/proc/self/oom_score_adj").read_text(),
        "groups": Path("/proc/self/cgroup").read_text(),
        "death": ctypes.CDLL(None).prctl(2, ctypes.byref(signal_number := ctypes.c_int())) or signal_number.value,
        "open": [folder, *(str(Path(f"/proc/self/fd/{number}").readlink()) for number in range(folder))],
        "folder": str(Path.cwd()),
        "python": [
            sys.argv,
            sys.path,
            sys.flags.utf8_mode,
            sys.stdout.encoding,
            sys.stdout.line_buffering,
            gc.isenabled(),
        ],
        "crashes": faulthandler.is_enabled(),
    }


def main() -> int:
    match sys.argv[1:]:
        case ["say", word]:
            sys.stdout.write(f"{word}\n")
        case ["end in order"]:
            atexit.register(sys.stdout.write, "exit function\n")
            threading.Timer(0.1, sys.stdout.write, ("thread\n",)).start()
            sys.stdout.write("main\n")
            return 3
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
        case ["report", file]:
            Path(file).write_text(json.dumps(report()))
        case ["family", file]:
            server = children.fork_server.process
            assert server is not None, "it has no fork server"
            child = children.start_child("tests.tasks.child", ["report", f"{file}-child"], Path(f"{file}-log"))
            assert child.wait(20) == 0
            assert children.fork_server.process is server
            Path(file).write_text(str(os.getpid()))
    return 0
