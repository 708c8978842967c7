"""Triton must know before its first import, by whomever, that it is to interpret kernels."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
