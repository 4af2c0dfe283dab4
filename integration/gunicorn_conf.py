"""gunicorn's settings for the web applications in this folder: when what they have starts and ends."""

worker_class = "gevent"
graceful_timeout = 20


def post_worker_init(worker):  # type: ignore[no-untyped-def]  # gunicorn's types
    """Start, in the worker's own hub."""
    worker.wsgi.start()


def worker_exit(server, worker):  # type: ignore[no-untyped-def]  # as above
    """SIGTERM, SIGHUP: what was delivered is worked off, and what was published confirmed, before the worker ends."""
    worker.wsgi.close()
