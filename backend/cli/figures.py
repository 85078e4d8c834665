"""How the figures of a run look in a terminal: names and values."""

from typing import Any


def estimate(figure: dict[str, Any] | float | None) -> str:
    """Format a mean with its 95% interval, where there is one; a single episode has a plain number."""
    return _with_interval(figure, 1, ".3f", "")


def share(figure: dict[str, Any] | float | None) -> str:
    """Format a rate in percent with its 95% interval, where there is one."""
    return _with_interval(figure, 100, ".1f", "%")


def _with_interval(figure: dict[str, Any] | float | None, scale: float, form: str, unit: str) -> str:
    known: dict[str, Any] = figure if isinstance(figure, dict) else {"mean": figure}
    mean, low, high = (known.get(name) for name in ("mean", "low", "high"))
    if mean is None:
        return "–"
    shown = f"{scale * mean:{form}}{unit}"
    return shown if low is None or high is None else f"{shown} [{scale * low:{form}}, {scale * high:{form}}]"


def dollars(value: float | None) -> str:
    return "–" if value is None else f"${value:.2f}" if value >= 1 else f"${value:.3g}"


def coverage(found: dict[str, Any] | None) -> str:
    return "–" if found is None else f"{found['completed']:,} of {found['total']:,} completed"


def chance(p: float | None) -> str:
    return "–" if p is None else "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def figure_fields(found: dict[str, Any]) -> dict[str, object]:
    """A run's figures as names and values."""
    reward, *columns = found["columns"]
    success, spent, groups = found["success"], found["spent"], found["groups"]
    fields: dict[str, object] = {
        "completed": coverage(found["coverage"]),
        "reward": estimate(reward),
        **{f"  {column['name']}": estimate(column) for column in columns},
        f"success ({success['where']})": share(success["rate"]),
    }
    if len(found["passes"]) > 1:
        for at in found["passes"]:
            fields[f"  k = {at['k']}"] = f"pass@k {share(at['pass_at_k'])}, pass^k {share(at['pass_hat_k'])}"
    if cheating := found["cheat_rate"]:
        passed = f"{cheating['passed']:,} of {cheating['played']:,} impossible tasks passed"
        fields["cheat rate"] = f"{passed}, {share({**cheating, 'mean': cheating['rate']})}"
    for place in found["environments"]:
        if cheating := place["cheat_rate"]:
            fields[f"  in {place['name']}"] = f"{cheating['passed']:,} of {cheating['played']:,} passed"
    if groups:
        parts = ", ".join(f"{groups[kind]:,} {kind.replace('_', ' ')}" for kind in ("mixed", "all_good", "all_bad"))
        fields["groups"] = f"{groups['groups']:,}: {parts}"
    fields["tokens"] = f"{spent['tokens_in']:,} in, {spent['tokens_out']:,} out"
    fields["cost"] = dollars(spent["cost"])
    fields["ended by"] = ", ".join(f"{reason} {count:,}" for reason, count in found["stop_reasons"].items())
    for failure in found["failures"]:
        fields[f"failed, {failure['kind']}"] = f"{failure['count']:,} × {failure['message']}"
    return fields
