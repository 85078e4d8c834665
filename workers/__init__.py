"""What runs things: the env host, the rollout engine, the trainers and the Celery jobs. Never imports FastAPI."""
