"""Glue for NeMo RL's own GRPO and SFT scripts."""
