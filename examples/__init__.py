"""What to start from: configs, suites, problems and scripts. Run them from the checkout."""
