"""Plumbing: files, processes, caches, memory. Knows nothing of learning."""
