"""What runs show: report, diagnostics, audit, suites of methods."""
