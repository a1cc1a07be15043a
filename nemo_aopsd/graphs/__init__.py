"""Reasoning graphs: built from solutions, drawn, browsed."""
