"""Triton kernels of the elementwise variants and of doubly-normalised attention, which no library has.

``elementwise.py`` and ``doubly_normalized.py`` have the kernels. ``launch.py`` launches them, ``operators.py`` wraps
them as PyTorch operators. ``available.py`` has the supported dtypes and widths; ``self_test.py`` tests each kernel
before its first use. This package can be imported without Triton, its module ``operators`` cannot.
"""
