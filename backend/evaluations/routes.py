"""Pages of policies, evaluations, runs, rollouts and comparisons."""

from fastapi import APIRouter

from backend.evaluations.pages import compare, new_evaluation, policies, rollouts, run, run_tabs, runs

router = APIRouter()
for part in (policies, new_evaluation, runs, run, run_tabs, rollouts, compare):
    router.include_router(part.router)
