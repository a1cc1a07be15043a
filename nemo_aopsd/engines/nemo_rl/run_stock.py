"""Kept so that older commands still work; the code is in `baselines/run_stock.py`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("nemo_aopsd.baselines.run_stock", run_name="__main__")
