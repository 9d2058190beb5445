"""warmroute's inference worker: a small engine with a radix prefix cache."""
