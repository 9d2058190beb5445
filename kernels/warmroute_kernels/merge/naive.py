"""The truth about `merge_states`, in plain PyTorch and float64."""

import torch
from torch import Tensor


def merge_states_naive(
    partial_out: Tensor, partial_lse: Tensor, *, counts: Tensor | None = None, first: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What `merge_states` writes: out [rows, heads, head_dim] and lse [rows, heads], both float64."""
    rows, heads, states, head_dim = partial_out.shape
    out = partial_out.new_zeros(rows, heads, head_dim, dtype=torch.float64)
    lse = torch.full((rows, heads), -torch.inf, dtype=torch.float64, device=partial_out.device)
    for row in range(rows):
        begin = 0 if first is None else int(first[row])
        end = states if counts is None else begin + int(counts[row])
        for head in range(heads):
            told = [
                (partial_out[row, head, state].double(), partial_lse[row, head, state].double())
                for state in range(begin, end)
                if partial_lse[row, head, state] > -torch.inf
            ]
            if told:
                outs, lses = (torch.stack(each) for each in zip(*told, strict=True))
                out[row, head] = lses.softmax(0) @ outs
                lse[row, head] = lses.logsumexp(0)
    return out, lse
