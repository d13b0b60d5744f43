"""CUDA kernels in Triton of what no library has: the elementwise variants, and doubly-normalised attention.

``elementwise.py`` and ``doubly_normalized.py`` hold kernels, ``launch.py`` starts them, ``operators.py`` makes ops
of PyTorch of them; ``available.py`` says where they can run, ``proof.py`` looks at each before its first use.
Importing this package needs no Triton; ``operators`` does.
"""
