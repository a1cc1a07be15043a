"""What `aopsd evaluate` and `aopsd compare` are made of. Sampling itself is an engine's; see docs/evaluation.md."""
