"""The place that configs of before named; the class lives in `baselines/solutions.py`."""

from nemo_aopsd.baselines.solutions import AOPSDSolutions

__all__ = ["AOPSDSolutions"]
