"""The paper's diagnostics, redone from the files of a run folder: a figure and tables in `RUN/diagnostics/`.

Each diagnostic is a function of a run folder that returns a `Result` (output.py); `steps.py` chooses the rollouts,
intervals are in intervals.py. Only `teacher` needs a model.
"""
