"""Triton kernels: tensors in, tensors out, and nothing of models. Imported where they are used."""
