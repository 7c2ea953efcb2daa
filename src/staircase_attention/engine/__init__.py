"""Speed only: kernels, the fused core, the decoder, captured updates.

Everything here has a slow twin in the exact package, and computes the same function.
"""
