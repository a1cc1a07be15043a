"""The place that configs of before named; the class lives in `baselines/dataset.py`."""

from nemo_aopsd.baselines.dataset import AOPSDProblems

__all__ = ["AOPSDProblems"]
