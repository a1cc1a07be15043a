"""`aopsd compare`: several methods on the same data and seeds, and one table of them. See docs/comparing.md.

spec.py reads the suite, folder.py knows what OUT holds, processes.py runs `aopsd train` some at a time, results.py
measures the runs, and table.py shows them.
"""
