"""Serve a GGUF file with llama.cpp's server: `python -m workers.models.serve_gguf`.

Takes the same request on standard input as `serve`, with a file as its folder, and answers with the same line of JSON.
The server is that of the package xllamacpp, a build of llama.cpp.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

SLOTS = 16
"""Concurrent requests. They share the context."""
MAX_CONTEXT = 4096
"""Tokens of a conversation, unless the model reads fewer. llama.cpp reserves the memory for all slots."""


def main() -> int:
    request = json.loads(sys.stdin.read())
    try:
        import xllamacpp
    except ImportError:
        return _fail("GGUF files are served by llama.cpp, which this machine lacks. Install it: `make instruct`")
    file = Path(request["folder"])
    options = xllamacpp.CommonParams()
    options.model.path = str(file)
    options.hostnames, options.port = [request["host"]], request["port"]
    options.api_keys = [request["token"]] if request["token"] else []
    options.model_alias = {request["name"]}
    options.n_parallel, options.n_ctx = SLOTS, SLOTS * MAX_CONTEXT
    cores = len(os.sched_getaffinity(0))  # more threads than cores wait for each other
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = cores
    options.use_jinja, options.ui, options.offline, options.verbosity = True, False, True, 1
    try:
        server = xllamacpp.Server(options)
    except (RuntimeError, ValueError, OSError) as error:
        return _fail(f"llama.cpp cannot serve {file.name}: {error}")
    port = urlsplit(server.listening_address).port
    sys.stdout.write(json.dumps({"port": port, "model": request["name"], "context": MAX_CONTEXT}) + "\n")
    sys.stdout.flush()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
    return 0


def _fail(message: str) -> int:
    sys.stdout.write(json.dumps({"error": message}) + "\n")
    sys.stdout.flush()
    return 1


if __name__ == "__main__":
    sys.exit(main())
