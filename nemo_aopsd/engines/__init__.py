"""Implementations of the protocols in `engine.py`; they import the core and never each other."""
