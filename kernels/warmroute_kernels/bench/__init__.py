"""`python -m warmroute_kernels.bench`: how fast the kernels are on this GPU, beside its limits and beside others.

For each case: the kernel's result is checked against its naive form, then it is timed with `do_bench` (caches are
flushed, the launch counts) and as a CUDA graph (as the worker runs it). Bytes and operations are those that the
problem needs at least, see `costs`; what the chip can do at most is measured in the same run, see `machine`.
"""
