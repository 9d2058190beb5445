"""Several routers in front of one fleet, and one router across its restarts. All that they share is soft."""
