"""Encoders of the BERT family in MLX."""
