"""The embedded default: a tiny model, its tokenizer, and problems whose graph is exact by construction."""
