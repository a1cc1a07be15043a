"""No time limit a hypothesis example: on a shared machine it measures the neighbours, not the code."""

from hypothesis import settings

settings.register_profile("shared_machine", deadline=None)
settings.load_profile("shared_machine")
