"""`warmroute mock-worker`: a worker without a model, with the cache and the pace of the simulator's engine."""
