"""Noise models: which labels are wrong."""
