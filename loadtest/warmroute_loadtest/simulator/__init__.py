"""A fleet of modelled workers behind the router's own routing: what a policy would do with a trace."""

from ..traces import Trace
from .fleet import Progress, SimulatedFleet, seeded
from .policies import SIM_POLICIES, SimPolicy
from .result import Result, summarise
from .spec import FleetSpec, SimulationError, coarsened

__all__ = ["SIM_POLICIES", "FleetSpec", "Result", "SimPolicy", "SimulationError", "simulate"]


def simulate(trace: Trace, policy: str | SimPolicy, spec: FleetSpec, progress: Progress = lambda: None) -> Result:
    """Run the whole trace. The same arguments give the same result, to the last digit.

    policy: a name in SIM_POLICIES, or a fresh object: policies remember what they chose.
    Raises SimulationError where the trace cannot run on this fleet.
    """
    trace = coarsened(trace, spec.block_tokens)
    with seeded(spec.seed):
        engine_tokens = spec.blocks * trace.block_tokens
        chosen = SIM_POLICIES[policy](engine_tokens) if isinstance(policy, str) else policy
        fleet = SimulatedFleet(trace, chosen, spec, progress)
        answers = fleet.run()
    name = policy if isinstance(policy, str) else type(policy).__name__
    computed_tokens = [worker.computed_tokens for worker in fleet.workers]
    return summarise(name, answers, computed_tokens, trace.ceiling, trace.block_tokens, spec.slo)
