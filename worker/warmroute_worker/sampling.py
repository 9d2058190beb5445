"""From logits to the next tokens, on the logits' device."""

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor
from warmroute_kernels.to_device import to_device

from .core import Request

_COLDEST = 1e-5
"""Below this the choice is the greatest logit in any case, and a division could overflow."""

_CUDA_ROWS = 64
"""Sampled at once: with a vocabulary of 128,256, sorting takes some 0.5 GB then."""


class Sampler:
    """Keeps one random generator per request, so that a seed gives the same answer whoever else is in the batch."""

    def __init__(self) -> None:
        self._generators: dict[Request, Random] = {}

    def sample(self, logits: Tensor, requests: Sequence[Request]) -> list[int]:
        """The next token of each request from its row of `logits` [requests, vocab].

        Waits for the device once: only token ids come to the host.
        """
        tokens = logits.argmax(-1)
        warm = [row for row, request in enumerate(requests) if request.params.temperature >= _COLDEST]
        # On a CPU a row for each core: what is computed of it stays in the core's cache.
        size = _CUDA_ROWS if logits.is_cuda else torch.get_num_threads()
        for at in range(0, len(warm), size):
            some = warm[at : at + size]
            rows = to_device(torch.tensor(some), logits.device)
            tokens[rows] = self._draw(logits[rows], [requests[row] for row in some])
        chosen: list[int] = tokens.tolist()
        return chosen

    def forget(self, request: Request) -> None:
        self._generators.pop(request, None)

    def _draw(self, logits: Tensor, requests: Sequence[Request]) -> Tensor:
        """int64 [requests]: by inverting the distribution function, which takes one random number for a token."""
        numbers = [(request.params.temperature, self._random(request)) for request in requests]
        temperatures, luck = to_device(torch.tensor(numbers, dtype=torch.float64), logits.device)[..., None].unbind(1)
        probabilities = torch.softmax(logits.float() / temperatures.float(), -1)
        probabilities = nucleus(probabilities, [request.params.top_p for request in requests])
        # Sums are float64: a GPU adds in an order that depends on the batch, and rounding must choose no token.
        reached = probabilities.cumsum(-1, dtype=torch.float64)
        tokens = torch.searchsorted(reached, luck * reached[:, -1:], right=True).squeeze(1)
        return tokens.clamp(max=logits.shape[1] - 1)  # were they NaN, it would be behind the last

    def _random(self, request: Request) -> float:
        generator = self._generators.get(request)
        if generator is None:
            generator = self._generators[request] = Random(request.params.seed)
        return generator.random()


def nucleus(probabilities: Tensor, top_p: Sequence[float]) -> Tensor:
    """Each row zero but for the smallest set of likeliest tokens whose probability reaches its `top_p`.

    Holtzman et al., 2020. probabilities: [rows, vocab]. Of equally likely tokens the first are taken.
    """
    narrow = [row for row, each in enumerate(top_p) if each < 1]
    if not narrow:
        return probabilities
    device = probabilities.device
    rows = to_device(torch.tensor(narrow), device)
    limits = to_device(torch.tensor([[top_p[row]] for row in narrow], dtype=torch.float64), device)
    some = probabilities[rows]
    ordered, order = some.sort(dim=-1, descending=True, stable=True)
    kept = 1 + torch.searchsorted(ordered.cumsum(-1, dtype=torch.float64), limits)
    ordered.masked_fill_(torch.arange(ordered.shape[1], device=device) >= kept, 0)
    return probabilities.index_copy(0, rows, some.scatter_(-1, order, ordered))
