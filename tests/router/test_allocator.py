import ctypes
import subprocess
import sys

FAULTS = """
import ctypes, resource
from warmroute_router.serving.allocator import keep_freed_memory
if {keep}:
    keep_freed_memory()
source = bytearray(1_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    held = [bytes(source) for _ in range(8)]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*, keep: bool) -> int:
    """Pages that the kernel had to give for 800 MB in bodies of 1 MB, eight at a time."""
    script = FAULTS.format(keep=keep)
    return int(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout)


def test_bodies_come_into_memory_that_was_there_before() -> None:
    kept = faults(keep=True)
    if hasattr(ctypes.CDLL(None), "mallopt"):
        assert kept < faults(keep=False) / 10
