"""One file per method, named as on the command line; `configs/method/<name>.yaml` is what makes it exist."""
