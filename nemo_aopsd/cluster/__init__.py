"""Whether a cluster fits a config, and what a run there will take."""
