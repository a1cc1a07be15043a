"""A run: epochs, checkpoints, its folder, and all checks before it starts."""
