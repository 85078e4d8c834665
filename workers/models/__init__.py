"""Small language models: made here, loaded, sampled from. Torch lives here and in `workers.training` alone."""
