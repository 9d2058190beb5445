"""The same faults, put to several routers in turn, and what each of them did."""
