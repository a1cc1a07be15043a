"""Kept so that older configs still work; the code is in `baselines/dataset.py`."""

from nemo_aopsd.baselines.dataset import AOPSDProblems

__all__ = ["AOPSDProblems"]
