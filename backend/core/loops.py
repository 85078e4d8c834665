"""The event loop of processes that play episodes: uvloop where it is installed."""

import asyncio
from collections.abc import Callable

try:
    import uvloop
except ImportError:
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    new_event_loop = uvloop.new_event_loop
