"""How the built-in problems and the built-in model were made; nothing of it is needed to use them."""
