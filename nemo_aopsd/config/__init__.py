"""Configs: the schema, loading with file and line, methods by name."""
