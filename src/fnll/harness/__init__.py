"""One run, from a config to its folder: what is trained, judged, recorded, kept and named."""
