"""What counts as success among the columns of a run."""

from backend.domain.environments.manifest import Manifest
from backend.domain.results.pass_at_k import REWARD, SuccessRule, default_rule
from backend.runs.tables import Run


def rule_of(run: Run, manifest: Manifest, column: str | None = None, at_least: float | None = None) -> SuccessRule:
    """What was chosen; a column alone is asked for its highest value."""
    suggested = default_rule(manifest)
    if suggested.column not in {REWARD, *run.columns}:  # other rewards than the version's were applied
        suggested = SuccessRule(REWARD, 0.5)
    if column is None or column == suggested.column:
        return suggested if at_least is None else SuccessRule(suggested.column, at_least)
    declared = {each.name: each.range for each in manifest.columns}.get(column)
    return SuccessRule(column, at_least if at_least is not None else (declared or (0.0, 1.0))[1])
