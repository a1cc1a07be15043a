"""Implements `aopsd evaluate` and `aopsd paired-test`. An engine does the sampling; see docs/evaluation.md."""

RESULTS = "results.json"  # in the folder of an `aopsd evaluate`
EPOCH = "epoch_{:03d}"  # stem of the files of one evaluation of training
