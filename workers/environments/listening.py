"""The env host's own socket on this machine."""

import contextlib
import os
import socket
from pathlib import Path


class HostCannotStart(RuntimeError):
    """The env host cannot start."""


def listen_on_path(path: Path) -> socket.socket:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if _answers(path):
        raise HostCannotStart(f"another env host serves {path}")
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        raise HostCannotStart(f"cannot listen on {path}: {error}") from error
    finally:
        os.umask(before)
    listener.listen(256)
    return listener


def _answers(path: Path) -> bool:
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
