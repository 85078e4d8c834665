"""`uvicorn proctor_adapter.app:app`"""

import os

from .environment import VerifiersEnvironment
from .models import Reply, Turn
from .serving import create_app

app = create_app(
    VerifiersEnvironment,
    Reply,
    Turn,
    env_name=os.environ["VERIFIERS_MODULE"],
    max_concurrent_envs=int(os.environ.get("MAX_CONCURRENT_ENVS", "16")),
)
