"""gunicorn's settings for the web applications in this folder: start and close them in each worker."""

worker_class = "gevent"
graceful_timeout = 20


def post_worker_init(worker):  # type: ignore[no-untyped-def]  # gunicorn's types
    """Start the application in the worker's own hub."""
    worker.wsgi.start()


def worker_exit(server, worker):  # type: ignore[no-untyped-def]  # as above
    """Handle all delivered messages, and wait for pending publishes, before the worker ends (SIGTERM, SIGHUP)."""
    worker.wsgi.close()
