"""The method of the paper. Start at `step.py`."""
