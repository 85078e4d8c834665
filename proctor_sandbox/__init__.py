"""Run code that nobody trusts, such as a program that a model wrote.

from proctor_sandbox import Limits, execute
result = execute("print(input()[::-1])", stdin="abc", limits=Limits(seconds=2))

Every execution is a fresh process in namespaces of its own, forked from a warm interpreter. Nothing of the caller
enters it but what `execute` is given: so never give it an expected value, and never trust its exit code for a score.
Pure Python for Linux, without dependencies; a package may carry this folder.
"""

from proctor_sandbox.client import ensure_available, execute
from proctor_sandbox.terms import Limits, Result, SandboxFailed, SandboxUnavailable

__all__ = ["Limits", "Result", "SandboxFailed", "SandboxUnavailable", "ensure_available", "execute"]
