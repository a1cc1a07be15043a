"""AOPSD less each other member, paired by seed, with 95 % t-intervals, from the seed tables of a page of results.

python -m benchmarks.seed_differences [PAGE.md], by default docs/results_tables.md of this checkout
"""

import argparse
from pathlib import Path
from statistics import fmean, stdev

from nemo_aopsd.stats import T_95


def seed_tables(page: str) -> list[dict[str, list[float]]]:
    """pass@1 of each seed in percent, by member, for each table on the page."""
    tables = []
    for part in page.split("pass@1 of each seed\n")[1:]:
        rows = [line.strip("| ").split(" | ") for line in part.split("\n## ")[0].split("\n### ")[0].splitlines()]
        rows = [row for row in rows if len(row) > 1 and row[1].endswith(" %")]
        tables.append({name: [float(cell.rstrip(" %")) for cell in cells] for name, *cells in rows})
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", nargs="?", type=Path, default=Path(__file__).parents[1] / "docs/results_tables.md")
    for table in seed_tables(parser.parse_args().page.read_text(encoding="utf-8")):
        own = table["aopsd"]
        print(f"{len(own)} seeds\n  {'aopsd less':<20} pass@1 in points (95 % t-interval over seeds)")
        for name in [name for name in table if name != "aopsd"]:
            differences = [one - other for one, other in zip(own, table[name], strict=True)]
            half = T_95[len(own)] * stdev(differences) / len(own) ** 0.5
            mean = fmean(differences)
            print(f"  {name:<20} {mean:+5.1f} ({mean - half:+.1f} to {mean + half:+.1f})")


if __name__ == "__main__":
    main()
