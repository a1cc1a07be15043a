"""What `aopsd evaluate` and `aopsd paired-test` are made of. Sampling itself is an engine's; see docs/evaluation.md."""

RESULTS = "results.json"  # in the folder of an `aopsd evaluate`
EPOCH = "epoch_{:03d}"  # stem of the files of one evaluation of training
