"""Calls of an HTTP client: each under one deadline, with its tries, on a thread or, monkey-patched, in a greenlet.

Owns the sessions that are kept between calls, and the threads. Knows no endpoint, and not what an answer means.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import gevent
from gevent import monkey
from gevent.event import AsyncResult

from gnsq.concurrency.threads import hub_call_queue
from gnsq.errors import NSQHttpError, NSQHttpTimeout, NSQHttpUnreachable
from gnsq.http.answer import Answer
from gnsq.http.exchange import NoAnswer, Request, Watch
from gnsq.http.workers import Workers

if TYPE_CHECKING:
    import ssl

    from gnsq.http.session import Session

__all__ = ["Attempt", "Calls", "Limits"]

# Seconds before the first retry; each further one waits twice as long.
_RETRY_DELAY = 0.1
_MAX_RETRY_DELAY = 2.0


class Limits(Protocol):
    """What is asked of the options; see there."""

    @property
    def timeout(self) -> float: ...
    @property
    def connect_timeout(self) -> float | None: ...
    @property
    def retries(self) -> int: ...
    @property
    def maxsize(self) -> int: ...
    @property
    def max_response_size(self) -> int: ...


class Calls:
    """The calls of one client, and what is kept between them.

    Args:
        address: For the texts of errors.
        headers, proxies, context: As Session has them.
    """

    def __init__(
        self,
        address: str,
        limits: Limits,
        headers: Mapping[str, str],
        proxies: Mapping[str, str] | None,
        context: ssl.SSLContext | None,
    ) -> None:
        self.address = address
        self.limits = limits
        self._headers = headers
        self._proxies = proxies
        self._context = context
        # How often they were closed.
        self.closings = 0
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._under_way: set[_Call] = set()
        # Sessions that no call uses now. A session is not safe to share between threads, so a call takes one out.
        self._idle: list[Session] = []
        self._workers = Workers(self.limits.maxsize)

    def check_fork(self) -> None:
        """Begin anew in a child: its threads are gone, and its connections are the parent's."""
        if self._pid == os.getpid():
            return
        idle = self._idle
        # os.fork() alone leaves both processes with one epoll, and each takes what is meant for the other.
        gevent.reinit()
        self._begin()
        # Closes the child's descriptors; the parent's stay open.
        for session in idle:
            session.close()

    def close(self) -> None:
        """Close connections and threads; calls under way fail."""
        self.check_fork()
        under_way, idle, workers = list(self._under_way), self._idle, self._workers
        self._begin()
        self.closings += 1
        # All before any: a thread that one sets free would begin the next.
        for call in under_way:
            call.forbid(self.closed_error())
        for call in under_way:
            call.end()
        for session in idle:
            session.close()
        workers.close()

    def closed_error(self) -> NSQHttpError:
        """Make what a call gets that close() ends."""
        return NSQHttpError(f"{self.address}: client was closed while it waited for an answer")

    def start(self, request: Request, watch: Watch, seconds: float, *, fresh: bool) -> _Call:
        """Begin an exchange.

        Args:
            fresh: Over a new connection.
        """
        connect_timeout = self.limits.connect_timeout or seconds

        def work() -> Answer:
            idle = self._idle
            session = self._take(idle, fresh=fresh)
            try:
                answer = session.exchange(
                    request,
                    watch,
                    seconds=seconds,
                    connect_timeout=connect_timeout,
                    max_size=self.limits.max_response_size,
                )
            except BaseException:
                session.close()
                raise
            self._keep(session, watch, idle)
            return answer

        call = _Call(work, watch, self._under_way)
        call.start(None if self._cooperative() else self._workers)
        return call

    def _cooperative(self) -> bool:
        """Whether requests lets other greenlets run: in a monkey-patched process, where ssl is patched if it is used.

        Raises:
            ValueError: If the TLS context is from before the patching; what urllib3 sets in it would recurse for ever.
        """
        patched: bool = monkey.is_module_patched("socket")
        if self._context is None or not monkey.is_module_patched("ssl"):
            return patched and self._context is None
        from gnsq.tls import is_patched  # loads ssl, which who has a context has done

        if not is_patched(self._context):
            raise ValueError("the TLS context was made before ssl was monkey-patched: patch first")
        return patched

    def _take(self, idle: list[Session], *, fresh: bool) -> Session:
        from gnsq.http.session import Session  # loads requests, which is slow: not in the hub's thread

        if not fresh:
            with contextlib.suppress(IndexError):
                return idle.pop()
        return Session(self._headers, self._proxies, self._context)

    def _keep(self, session: Session, watch: Watch, idle: list[Session]) -> None:
        if not watch.release() or len(idle) >= self.limits.maxsize:
            session.close()
            return
        idle.append(session)
        # After a close() nobody looks into this list.
        if idle is not self._idle:
            session.close()


class Attempt:
    """One call: exchange after exchange, each with its tries, until the deadline of all of them.

    Args:
        what: For the texts of errors.
        timeout: Seconds, in place of the client's.
    """

    def __init__(self, calls: Calls, what: str, timeout: float | None = None) -> None:
        self._calls = calls
        self._what = what
        self._limits = calls.limits
        self._timeout = self._limits.timeout if timeout is None else timeout
        self._ends = time.monotonic() + self._timeout
        self._sent = False
        self._closings = calls.closings

    @contextlib.contextmanager
    def deadline(self) -> Iterator[None]:
        """Keep what is inside from lasting longer than the timeout.

        Raises:
            NSQHttpError: As its subclasses say.
        """
        # Besides its purpose, the timer keeps the loop alive while a thread works.
        timer = gevent.Timeout.start_new(self._timeout)
        try:
            yield
        except gevent.Timeout as expired:
            if expired is not timer:
                raise
            raise self._timed_out() from None
        finally:
            timer.close()

    def answer(self, request: Request) -> Answer:
        """Make one request, again where that is safe.

        Raises:
            NSQHttpError: If there is no answer.
        """
        self._what = str(request)
        retries, fresh = 0, False
        while True:
            try:
                return self._exchange(request, fresh=fresh)
            except NoAnswer as failure:
                if failure.reused and request.method == "GET" and not fresh:
                    # The server had closed it, which is nobody's failure.
                    fresh = True
                    continue
                if retries >= self._limits.retries or not _may_be_repeated(request, failure):
                    raise self._translated(failure) from failure.__cause__
            gevent.sleep(min(_RETRY_DELAY * 2**retries, _MAX_RETRY_DELAY))
            retries += 1

    def _exchange(self, request: Request, *, fresh: bool) -> Answer:
        if self._calls.closings != self._closings:
            raise self._calls.closed_error()
        watch = Watch()
        seconds = max(self._ends - time.monotonic(), 0.001)
        call = self._calls.start(request, watch, seconds, fresh=fresh)
        try:
            return call.wait()
        finally:
            call.end()
            # Read behind end(), from where on nothing is sent.
            self._sent = watch.sent

    def _translated(self, failure: NoAnswer) -> NSQHttpError:
        if failure.timed_out and failure.sent:
            return self._timed_out()
        if failure.sent:
            return NSQHttpError(f"{self._what}: no answer: {failure}")
        return NSQHttpUnreachable(f"{self._what}: no answer: can't connect: {failure}")

    def _timed_out(self) -> NSQHttpError:
        if self._sent:
            return NSQHttpTimeout(f"{self._what}: no answer within {self._timeout:.6g} s")
        return NSQHttpUnreachable(f"{self._what}: no answer: nothing could be sent within {self._timeout:.6g} s")


def _may_be_repeated(request: Request, failure: NoAnswer) -> bool:
    """Whether trying again does nothing twice, and may end otherwise."""
    if failure.final:
        return False
    return not failure.sent or (request.method == "GET" and not failure.timed_out)


class _Call:
    """One exchange and who waits for it.

    Args:
        work: The exchange.
        under_way: The calls that have not ended.
    """

    def __init__(self, work: Callable[[], Answer], watch: Watch, under_way: set[_Call]) -> None:
        self._work = work
        self._watch = watch
        self._under_way = under_way
        self._queue = hub_call_queue()
        self._outcome = AsyncResult()
        self._greenlet: gevent.Greenlet | None = None

    def start(self, workers: Workers | None) -> None:
        """Do the work on a thread, or without workers in a greenlet."""
        self._under_way.add(self)
        if workers is None:
            self._greenlet = gevent.spawn(self._run)
        else:
            workers.do(self._run)

    def wait(self) -> Answer:
        """Wait for the answer; what the work raises is raised here."""
        answer, error = self._outcome.get()
        if error is not None:
            raise error
        found: Answer = answer
        return found

    def forbid(self, error: Exception) -> None:
        """Let nothing be sent from here on, and who waits get the error; end() has to follow."""
        # In this order, or what the work makes of it would come before the error.
        self._finish((None, error))
        self._watch.ended = True

    def end(self) -> None:
        """Give up, if it has not ended: nothing is sent from here on."""
        self._under_way.discard(self)
        self._watch.end()
        if self._greenlet is not None:
            self._in_its_loop(self._greenlet.kill, gevent.GreenletExit, False)

    def _run(self) -> None:
        if self._watch.ended:
            return
        try:
            outcome: tuple[Answer | None, Exception | None] = (self._work(), None)
        except Exception as error:  # noqa: BLE001  # raised again where it is waited for
            outcome = (None, error)
        self._finish(outcome)

    def _finish(self, outcome: tuple[Answer | None, Exception | None]) -> None:
        self._in_its_loop(self._settle, outcome)

    def _settle(self, outcome: tuple[Answer | None, Exception | None]) -> None:
        # The first one counts: what end() says is followed by what the thread makes of it.
        if not self._outcome.ready():
            self._outcome.set(outcome)

    def _in_its_loop(self, function: Callable[..., object], *arguments: object) -> None:
        # Its thread may have ended, and its loop with it: then nobody waits.
        with contextlib.suppress(ValueError):
            self._queue.call_soon_threadsafe(function, *arguments)
