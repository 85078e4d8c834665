"""A look at a training run before it is queued: the model is loaded, a little is played and learned, nothing is stored
but what was found."""
