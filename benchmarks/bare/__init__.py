"""What a good engineer would write without Proctor: the other side of the training benchmarks."""
