"""CUDA kernels in Triton of what no library has: the elementwise variants, and doubly-normalised attention.

``kernels.py`` computes, ``operators.py`` makes operators of PyTorch of it, ``available.py`` says where they can run.
Importing this package needs no Triton; ``operators`` does.
"""
