"""Partitions: who owns which samples."""
