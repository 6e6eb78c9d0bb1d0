"""Many runs: from a grid in words to a store of finished runs, on this machine, on SLURM or on Ray."""
