"""What all tests share: engines of one BLAS thread each, since tests run beside each other on few cores."""

import os

# OpenBLAS threads spin while they wait: with more of them than cores everything is about 7x slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
