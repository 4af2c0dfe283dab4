"""``make demo``: the pipeline on emulated nsqds, and a page of what came out; see __main__.py."""
