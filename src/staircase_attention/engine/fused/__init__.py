"""The core at the hardware's speed: the same function, fused steps, gradients by hand."""
