"""__TITLE__ as an OpenEnv environment."""

from .client import __CLASS__Env
from .models import __CLASS__Action, __CLASS__Observation

__all__ = ["__CLASS__Action", "__CLASS__Env", "__CLASS__Observation"]
