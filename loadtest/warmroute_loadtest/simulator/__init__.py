"""A fleet of modelled workers behind the router's own routing: what a policy would do with a trace."""

from functools import partial

from ..traces import Trace
from .fleet import Progress, SimulatedFleet, seeded
from .policies import SIM_POLICIES, SimPolicy
from .replicas import MakePolicy
from .result import Result, summarise
from .spec import FleetSpec, SimulationError, coarsened

__all__ = ["SIM_POLICIES", "FleetSpec", "MakePolicy", "Result", "SimPolicy", "SimulationError", "simulate"]


def simulate(trace: Trace, policy: str | MakePolicy, spec: FleetSpec, progress: Progress = lambda: None) -> Result:
    """Run the whole trace. The same arguments give the same result, to the last digit.

    policy: a name in SIM_POLICIES, or what makes a fresh object for each router: policies remember what they chose.
    Raises SimulationError where the trace cannot run on this fleet.
    """
    trace = coarsened(trace, spec.block_tokens)
    engine_tokens = spec.blocks * trace.block_tokens
    make_policy = partial(SIM_POLICIES[policy], engine_tokens) if isinstance(policy, str) else policy
    with seeded(spec.seed):
        fleet = SimulatedFleet(trace, make_policy, spec, progress)
        answers = fleet.run()
    name = policy if isinstance(policy, str) else getattr(policy, "__name__", repr(policy))
    computed_tokens = [worker.computed_tokens for worker in fleet.workers]
    return summarise(name, answers, computed_tokens, trace.ceiling, trace.block_tokens, spec.slo)
