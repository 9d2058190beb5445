import torch
from torch import Tensor
from warmroute_kernels.to_device import to_device


class OnHost(Tensor):
    """Notes how it is copied to a GPU, where there is none."""

    copied: list[object]

    def pin_memory(self, device: object = None) -> "OnHost":
        self.copied = ["pinned"]
        return self

    def to(self, *to: object, **options: object) -> "OnHost":
        self.copied += [*to, options]
        return self


def test_a_copy_to_a_gpu_waits_for_nothing() -> None:
    tensor = torch.arange(3).as_subclass(OnHost)
    assert to_device(tensor, torch.device("cuda")) is tensor
    assert tensor.copied == ["pinned", torch.device("cuda"), {"non_blocking": True}]


def test_on_a_cpu_nothing_is_copied() -> None:
    tensor = torch.arange(3)
    assert to_device(tensor, torch.device("cpu")) is tensor
