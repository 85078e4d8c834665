"""Serves a folder of weights until it is told to end: `python -m workers.models.serve`.

What to serve comes as JSON on standard input (`{folder, name, host, port, token}`), so that a token stands in no list
of processes. One line of JSON on standard output says where it listens, or why it does not.
"""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from aiohttp import web
from transformers.utils.logging import disable_progress_bar

from backend.core.logs import configure_logging
from workers.http_server import make_runner
from workers.models.chat import ChatUnusable
from workers.models.load import ModelUnusable, load_folder
from workers.models.serving import Endpoint
from workers.models.serving_batches import Batches

SHUTDOWN_SECONDS = 2.0
SMALL = 20_000_000
"""Parameters."""


def main() -> int:
    configure_logging("serve")
    disable_progress_bar()
    asked: dict[str, Any] = json.loads(sys.stdin.read())
    try:
        model, tokenizer = load_folder(Path(asked["folder"]))
        batches = Batches(model, tokenizer)
    except (ModelUnusable, ChatUnusable) as error:
        _tell(error=str(error))
        return 1
    if model.num_parameters() < SMALL:
        torch.set_num_threads(1)  # several only get in one another's way
    return asyncio.run(_serve(Endpoint(batches, asked["name"], asked["token"]), asked["host"], asked["port"]))


async def _serve(endpoint: Endpoint, host: str, port: int) -> int:
    runner = make_runner(endpoint.app(), shutdown_seconds=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
    except OSError as error:
        _tell(error=f"cannot listen on {host}:{port}: {error.strerror or error}")
        return 1
    _tell(port=runner.addresses[0][1], model=endpoint.name, context=endpoint.batches.context)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
    await endpoint.batches.close()
    await runner.cleanup()
    return 0


def _tell(**news: object) -> None:
    sys.stdout.write(json.dumps(news) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
