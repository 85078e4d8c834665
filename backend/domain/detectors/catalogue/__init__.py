"""One module per detector: its declaration and its implementation."""
