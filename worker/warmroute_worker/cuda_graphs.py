"""Decode steps as CUDA graphs: a step's kernels are recorded once for each batch size, and then launched as one.

A graph computes over tensors that stay where they are, and a step fills them anew: see `TritonAttention.reserve`.
Steps with a prefill in them, and those that share a prefix by `cascade`, are not alike, and are computed as ever.

Not yet run on a GPU. The tests have a stand-in for the recorder; all else is as it is here.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .attention.base import Attention
from .attention.triton import Step, TritonAttention
from .model.llama import Llama

Recorder = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""Takes a computation; gives what replays it, and the tensor that holds its result after each replay."""


class _Graph(NamedTuple):
    step: Step
    tokens: Tensor
    positions: Tensor
    replay: Callable[[], None]
    hidden: Tensor


class GraphedModel:
    """A model whose decode steps are replayed where there is a graph for them."""

    def __init__(
        self, model: Llama, attention: TritonAttention, recorder: Recorder, *, max_batch: int, context: int
    ) -> None:
        self._model = model
        # The largest first: the others then find room in the memory that it has taken.
        self._graphs = [
            _record(model, attention, recorder, size, context) for size in reversed(batch_sizes(max_batch))
        ]

    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """As `Llama.forward`, but that the next step may overwrite what it gives."""
        assert isinstance(attention, TritonAttention), "its steps are what is recorded"
        for graph in self._graphs:
            if graph.step is attention.step:
                graph.tokens[: len(tokens)] = tokens
                graph.positions[: len(tokens)] = positions
                graph.replay()
                return graph.hidden[: len(tokens)]
        return self._model.forward(tokens, positions, attention)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)


def batch_sizes(largest: int) -> list[int]:
    """1, 2, 4, 8, and so on, and the largest."""
    return [*(1 << power for power in range(largest.bit_length()) if 1 << power < largest), largest]


@torch.inference_mode()
def _record(model: Llama, attention: TritonAttention, recorder: Recorder, size: int, context: int) -> _Graph:
    step = attention.step = attention.reserve(size, context)
    # Those of rows that a batch does not need are old ones, which are valid: nobody reads what comes of them.
    tokens, positions = torch.zeros(2, size, dtype=torch.int64, device=step.slots.device)
    replay, hidden = recorder(lambda: model.forward(tokens, positions, attention))
    return _Graph(step, tokens, positions, replay, hidden)


class CudaRecorder:
    """Records with `torch.cuda.CUDAGraph`, all graphs in one pool of memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        # Once before, aside: kernels are compiled and libraries set up, which must not happen while it is recorded.
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            compute()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = compute()
        return graph.replay, result
