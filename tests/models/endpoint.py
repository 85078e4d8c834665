"""A served model for tests, in this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from workers.models.serve import ModelServer
from workers.models.serving_batches import BatchSampler


@asynccontextmanager
async def served(model: Any, tokenizer: Any, *, token: str = "") -> AsyncIterator[tuple[str, BatchSampler]]:
    """Its address and what answers."""
    batches = BatchSampler(model, tokenizer)
    runner = web.AppRunner(ModelServer(batches, "tiny", token).app(), handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", batches
    finally:
        await batches.close()
        await runner.cleanup()
