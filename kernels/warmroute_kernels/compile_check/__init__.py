"""`python -m warmroute_kernels.compile_check`: every kernel compiled for GPUs that need not be there.

Triton's compiler goes all the way to the machine code of sm_80, sm_90 and sm_100, so that a kernel which these
refuse, or which wants more shared memory than they have, is found where no GPU is. What registers are spilled is told
too: such a kernel runs, but slowly.
"""
