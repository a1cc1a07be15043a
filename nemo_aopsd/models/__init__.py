"""What is known about a model before it is loaded, and its tokenizer."""
