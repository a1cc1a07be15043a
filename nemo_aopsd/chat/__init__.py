"""One client for servers that speak the OpenAI chat protocol."""
