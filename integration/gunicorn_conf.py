"""gunicorn's settings for integration/gunicorn_app.py: when its consumer starts and ends."""

worker_class = "gevent"
graceful_timeout = 20


def post_worker_init(worker):  # type: ignore[no-untyped-def]  # gunicorn's types
    """Start consuming, in the worker's own hub."""
    worker.wsgi.consumer.start(block=False)


def worker_exit(server, worker):  # type: ignore[no-untyped-def]  # as above
    """SIGTERM, SIGHUP: what was delivered is worked off before the worker ends."""
    worker.wsgi.consumer.close(timeout=20)
