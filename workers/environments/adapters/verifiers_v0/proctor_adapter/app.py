"""`uvicorn proctor_adapter.app:app`"""

import os

from openenv.core.env_server import create_app

from .environment import VerifiersEnvironment
from .models import Reply, Turn

app = create_app(
    VerifiersEnvironment,
    Reply,
    Turn,
    env_name=os.environ["VERIFIERS_MODULE"],
    max_concurrent_envs=int(os.environ.get("MAX_CONCURRENT_ENVS", "16")),
)
