"""Other rewards over stored rollouts, and stored actions on another version: asked for here, done by workers."""
