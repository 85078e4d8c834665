"""A chat completions endpoint on loopback that answers at once, so that the callers' own work is what is measured.

    python -m benchmarks.peers.endpoint

Prints its address and serves until it is ended. Requests are cut out of the stream by hand: a web framework would
itself be what is measured.
"""

import asyncio
import json
import sys
from typing import cast

ANSWER = "<think>x</think><reversed_text>edcba</reversed_text><move>4</move>"
"""Answers both environments of the comparison."""
_COMPLETION = {
    "id": "chatcmpl-instant",
    "object": "chat.completion",
    "created": 0,
    "model": "instant",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ANSWER}}],
    "usage": {"prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 32},
}
_BODY = json.dumps(_COMPLETION).encode()
_HEAD = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(_BODY)}\r\n\r\n"
RESPONSE = _HEAD.encode() + _BODY


class InstantEndpoint(asyncio.Protocol):
    """One connection; answers every request that has arrived whole."""

    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (size := self._request_size()) and len(self._received) >= size:
            self._received = self._received[size:]
            self._transport.write(RESPONSE)

    def _request_size(self) -> int:
        """Of the first request, head and body; 0 while its head is incomplete."""
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0:
            return 0
        head = self._received[:head_end].lower()
        _, found, rest = head.partition(b"content-length:")
        return head_end + 4 + (int(rest.split(b"\r\n", 1)[0]) if found else 0)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(InstantEndpoint, "127.0.0.1", 0, backlog=2048)
    host, port = server.sockets[0].getsockname()
    sys.stdout.write(f"http://{host}:{port}/v1\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
