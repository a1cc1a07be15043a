"""What `aopsd evaluate` and `aopsd paired-test` are made of. Sampling itself is an engine's; see docs/evaluation.md."""
