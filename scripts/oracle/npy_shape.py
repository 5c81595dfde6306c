"""Prints the shape and type of a NumPy file: npy_shape.py FILE"""
import sys

import numpy as np

array = np.load(sys.argv[1])
print(array.shape, array.dtype)
