"""Pages of policies, evaluations, runs, rollouts, comparisons and leaderboards."""

from fastapi import APIRouter

from backend.evaluations.pages import (
    compare,
    filter_help,
    judges,
    leaderboards,
    new_evaluation,
    policies,
    questions,
    rollout_table,
    rollouts,
    run,
    run_tabs,
    runs,
)

router = APIRouter()
for part in (
    policies,
    new_evaluation,
    runs,
    run,
    run_tabs,
    rollout_table,
    judges,
    questions,
    rollouts,
    compare,
    leaderboards,
    filter_help,
):
    router.include_router(part.router)
