"""What torch reaches here, and how a torch without any GPU's code is known."""

import pytest
import torch

from workers.models import machine


def test_what_torch_was_built_for_is_read_without_importing_it() -> None:
    was_built_for_gpus = torch.version.cuda is not None or torch.version.hip is not None
    assert machine.may_reach_gpus() is was_built_for_gpus


def test_torch_that_is_asked_shows_what_was_concluded(monkeypatch: pytest.MonkeyPatch) -> None:
    concluded = machine.reach()
    monkeypatch.setattr(machine, "may_reach_gpus", lambda: True)
    assert machine.reach() == concluded
    assert concluded["cuda"] is torch.cuda.is_available()
