"""What an SFT warm-up learns from: stored rollouts by filter, uploaded files, and what there is to say of them."""
