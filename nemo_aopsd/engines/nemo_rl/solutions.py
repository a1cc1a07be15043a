"""Kept so that older configs still work; the code is in `baselines/solutions.py`."""

from nemo_aopsd.baselines.solutions import AOPSDSolutions

__all__ = ["AOPSDSolutions"]
