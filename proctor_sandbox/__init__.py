"""Run untrusted code, such as a program that a model wrote.

from proctor_sandbox import Limits, execute
result = execute("print(input()[::-1])", stdin="abc", limits=Limits(seconds=2))

Every execution is a fresh process in separate namespaces, forked from a warm interpreter. It sees nothing of the caller
except the arguments of `execute`: never pass an expected value, and never base a score on the exit code.
Pure Python for Linux, without dependencies; a package may include this folder.
"""

from proctor_sandbox.client import ensure_available, execute
from proctor_sandbox.terms import Limits, Result, SandboxFailed, SandboxUnavailable

__all__ = ["Limits", "Result", "SandboxFailed", "SandboxUnavailable", "ensure_available", "execute"]
