"""Messages over a stream socket: four bytes of length, then the bytes."""

import socket
import struct

_LENGTH = struct.Struct("<I")


def write_message(connection: socket.socket, message: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(message)) + message)


def read_message(connection: socket.socket, most: int = 64 << 20) -> bytes:
    """Raises OSError if the other side closes before the end of the message."""
    (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
    if length > most:
        raise OSError("the message is too long")
    return _read(connection, length)


def _read(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise OSError("the other side ended")
        parts += part
    return bytes(parts)
