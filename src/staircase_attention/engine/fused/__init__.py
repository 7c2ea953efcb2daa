"""A core with fused steps: the same function, with gradients written by hand."""
