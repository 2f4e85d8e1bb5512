"""Batched generation over mlx-lm models: many rows decode together, join and leave without the others being copied."""
