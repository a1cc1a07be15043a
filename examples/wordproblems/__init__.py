"""Arithmetic word problems in plain English with exact reasoning DAGs, for a real language model of any size.

`python -m examples.wordproblems --out DIR` writes the data; run.sh goes on to the comparison. See docs/wordproblems.md.
"""
