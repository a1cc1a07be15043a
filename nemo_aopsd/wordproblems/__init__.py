"""Arithmetic word problems in plain English with exact reasoning DAGs, for a real language model of any size."""
