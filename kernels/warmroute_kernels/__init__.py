"""Attention over a paged KV cache, in Triton, with the plain PyTorch truth beside each kernel.

A folder for each: `naive.py` says what is computed, the kernel computes it fast, `__init__.py` has the function that
callers use. The naive forms need PyTorch alone; Triton is imported where a kernel is used for the first time.
"""
