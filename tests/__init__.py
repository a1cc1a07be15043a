from pathlib import Path

REPO = Path(__file__).parents[1]
SHARED = REPO.parent / "shared/data"  # real data beside a checkout; tests that read it skip where it is absent
