"""The training API: sample, compute gradients, step and save over HTTP, for trainers outside Proctor."""
