"""Support triage as an OpenEnv environment."""

from .client import SupportTriageEnv
from .models import SupportTriageAction, SupportTriageObservation

__all__ = ["SupportTriageAction", "SupportTriageEnv", "SupportTriageObservation"]
