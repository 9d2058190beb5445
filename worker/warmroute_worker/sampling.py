"""From logits to the next token."""

import torch
from torch import Tensor

from .core import Request

_COLDEST = 1e-5
"""Below this the choice is the greatest logit in any case, and a division could overflow."""


class Sampler:
    """Keeps one random generator per request, so that a seed gives the same answer whoever else is in the batch."""

    def __init__(self) -> None:
        self._generators: dict[Request, torch.Generator] = {}

    def sample(self, logits: Tensor, request: Request) -> int:
        """The next token of `request` from its `logits` [vocab]."""
        params = request.params
        if params.temperature < _COLDEST:
            return int(logits.argmax())
        probabilities = nucleus(torch.softmax(logits.float() / params.temperature, -1), params.top_p)
        return int(torch.multinomial(probabilities, 1, generator=self._generator(request)))

    def forget(self, request: Request) -> None:
        self._generators.pop(request, None)

    def _generator(self, request: Request) -> torch.Generator:
        generator = self._generators.get(request)
        if generator is None:
            generator = self._generators[request] = torch.Generator()
            if request.params.seed is None:
                generator.seed()
            else:
                generator.manual_seed(request.params.seed)
        return generator


def nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Zero but for the smallest set of likeliest tokens whose probability reaches `top_p` (Holtzman et al., 2020)."""
    if top_p >= 1:
        return probabilities
    ordered, order = probabilities.sort(descending=True)
    before = ordered.cumsum(-1) - ordered
    # But for the first, which stays however small top_p is: fp32 may take it for 0.
    ordered[1:][before[1:] >= top_p] = 0
    return torch.zeros_like(probabilities).scatter_(-1, order, ordered)
