"""Words of the options of embed."""

from __future__ import annotations

#: What may become of a text over the model's length: an error, its first tokens alone, or a vector a piece.
ERROR, TRUNCATE, CHUNK = "error", "truncate", "chunk"
LONG = (ERROR, TRUNCATE, CHUNK)
#: Of the numbers in a vector.
DTYPES = ("float32", "float16")
