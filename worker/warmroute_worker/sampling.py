"""From logits to the next token."""

import torch
from torch import Tensor

from .core import Request


class Sampler:
    """Keeps one random generator per request, so that a seed gives the same answer whoever else is in the batch."""

    def __init__(self) -> None:
        self._generators: dict[Request, torch.Generator] = {}

    def sample(self, logits: Tensor, request: Request) -> int:
        """The next token of `request` from its `logits` [vocab]."""
        params = request.params
        if params.temperature == 0:
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
    ordered[before >= top_p] = 0
    return torch.zeros_like(probabilities).scatter_(-1, order, ordered)
