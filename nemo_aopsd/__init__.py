"""Adaptive on-policy self-distillation for NeMo RL, and for one laptop."""
