"""A certificate in the terminal: every check with what it saw, what it cost, and the rollouts that show it."""

from collections import Counter
from typing import Any

from backend.cli.names import short
from backend.cli.output import console, say

MARKS = {"passed": ("✓", "green"), "warned": ("!", "yellow"), "failed": ("✗", "red"), "skipped": ("–", "dim")}


def tell_certificate(certificate: dict[str, Any]) -> None:
    """By theme, in the order checked; the outcome at the end, where the eye is."""
    theme = None
    for result in certificate["results"]:
        if result.get("theme") != theme:
            theme = result.get("theme")
            say(f"\n{theme}" if theme else "", "bold")
        _tell_result(result)
    counts = Counter(_state(result) for result in certificate["results"])
    seconds = sum(result["seconds"] for result in certificate["results"])
    episodes = sum(result.get("episodes", 0) for result in certificate["results"])
    told = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    _, style = MARKS[certificate["status"]]
    say(f"\n{certificate['status']}: {told}; {episodes:,} episodes in {seconds:.1f} s", style)
    say(f"holds for {certificate['content_hash']}", "dim")


def _tell_result(result: dict[str, Any]) -> None:
    mark, style = MARKS[result["status"]]
    line = f"{mark} {result['check']:<22} {result['sentence']}"
    console().print(line, style=style, markup=False)
    cost = f"{result['seconds']:.2f} s, {result['episodes']} episodes" if result.get("episodes") else ""
    say(f"    {result['evidence']}{f'  ({cost})' if cost else ''}")
    if result["status"] in {"failed", "warned"} and result.get("advice"):
        say(f"    {result['advice']}", "dim")
    if result["status"] in {"failed", "warned"} and result.get("rollouts"):
        say("    rollouts: " + " ".join(short(str(rollout)) for rollout in result["rollouts"]), "dim")


def _state(result: dict[str, Any]) -> str:
    return "not applicable" if not result.get("applies", True) else str(result["status"])
