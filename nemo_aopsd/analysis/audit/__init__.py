"""The semantic audit of continuation events, blind to their NLL: sample, label, compare by NLL bin (sec:selective).

Whoever labels reads `events.jsonl`, which says nothing of NLL, gap or weight; those wait in `key.jsonl` for the report.
"""
