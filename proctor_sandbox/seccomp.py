"""The seccomp filter of enclosed code: a deny list as a handwritten BPF program (seccomp(2))."""

import ctypes
import errno
import os
import struct
from functools import cache

from proctor_sandbox.syscalls import AUDIT_ARCH, CLONE, CLONE3, DENIED, SOCKET

_LOAD, _JUMP, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_X32_BIT = 0x40000000
_NEW_NAMESPACES = 0x7E020080
"""CLONE_NEWTIME | NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET."""
_LINEAR = 4
"""Number of calls up to which a search compares one by one."""
_FAMILIES = (1, 2, 10)
"""Unix, and IPv4 and IPv6 for libraries that only probe them: there is no interface. No vsock, no netlink."""

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _refuse(error: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | error)


@cache
def program(machine: str, allowed: frozenset[str] = frozenset()) -> bytes:
    """The filter for `machine` (os.uname().machine). Raises KeyError for an architecture without a table.

    `allowed` are names of calls that this filter does not deny; `clone` without it makes no namespaces.
    """
    parts = [
        _instruction(_LOAD, _ARCH_AT),
        _instruction(_JUMP_EQUAL, AUDIT_ARCH[machine], 1, 0),
        _instruction(_RETURN, _KILL_PROCESS),
        _instruction(_LOAD, _NUMBER_AT),
    ]
    if machine == "x86_64":
        parts += [_instruction(_JUMP_AT_LEAST, _X32_BIT, 0, 1), _instruction(_RETURN, _KILL_PROCESS)]
    parts += _refuse_any(sorted(number for name, number in DENIED[machine].items() if name not in allowed))
    # libc falls back from clone3, whose flags a filter cannot read, to clone
    parts += [_instruction(_JUMP_EQUAL, CLONE3[machine], 0, 1), _refuse(errno.ENOSYS)]
    if "clone" not in allowed:
        parts += [
            _instruction(_JUMP_EQUAL, CLONE[machine], 0, 4),
            _instruction(_LOAD, _FIRST_ARGUMENT_AT),
            _instruction(_JUMP_ANY_BIT, _NEW_NAMESPACES, 0, 1),
            _refuse(errno.EPERM),
            _instruction(_LOAD, _NUMBER_AT),
        ]
    parts += [
        _instruction(_JUMP_EQUAL, SOCKET[machine], 0, len(_FAMILIES) + 2),
        _instruction(_LOAD, _FIRST_ARGUMENT_AT),
    ]
    parts += [_instruction(_JUMP_EQUAL, family, len(_FAMILIES) - place, 0) for place, family in enumerate(_FAMILIES)]
    parts += [_refuse(errno.EAFNOSUPPORT), _instruction(_RETURN, _ALLOW)]
    return b"".join(parts)


def _refuse_any(numbers: list[int]) -> list[bytes]:
    """Refuse these calls by binary search: the kernel runs a new filter for every call that exists."""
    if len(numbers) <= _LINEAR:
        return [part for number in numbers for part in (_instruction(_JUMP_EQUAL, number, 0, 1), _refuse(errno.EPERM))]
    middle = len(numbers) // 2
    lower, upper = _refuse_any(numbers[:middle]), _refuse_any(numbers[middle:])
    into_upper = _instruction(_JUMP_AT_LEAST, numbers[middle], len(lower) + 1, 0)
    return [into_upper, *lower, _instruction(_JUMP, len(upper)), *upper]


@cache
def _loadable(machine: str, allowed: frozenset[str]) -> tuple[_Program, ctypes.Array[ctypes.c_char]]:
    """The filter as the kernel reads it, and the buffer that holds its instructions."""
    code = program(machine, allowed)
    buffer = ctypes.create_string_buffer(code, len(code))
    return _Program(len(code) // 8, ctypes.addressof(buffer)), buffer


def prepare() -> None:
    """Build the strict filter now, for processes that are forked later."""
    _loadable(os.uname().machine, frozenset())


def install(libc: ctypes.CDLL, allowed: frozenset[str] = frozenset()) -> None:
    """Install the filter permanently in this process; also set no_new_privs."""
    filter_program, _ = _loadable(os.uname().machine, allowed)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(filter_program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")
