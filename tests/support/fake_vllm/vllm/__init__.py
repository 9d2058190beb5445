"""As much of vLLM 0.32 as a plugin for attention meets: the same names, signatures and order of arguments."""
