"""`warmroute bench`: an open-loop load generator for whatever speaks OpenAI's API."""
