"""A simulated GPU: a training step on fake tensors, in which kernels, copies and waits are counted."""
