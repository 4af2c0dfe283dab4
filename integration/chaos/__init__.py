"""Chaos: programs that use NSQ run while everything below them fails, and an account of every body is kept.

Processes. Some nsqds, each behind a relay through which all its clients reach it; two nsqlookupds; an auth server whose
answers expire after seconds; producers and consumers, each a process of its own (``workers.py``). Clients use mutual
TLS, AUTH, snappy or deflate, find the nsqds directly or by nsqlookupd, and answer messages in every way that there is.
The main process starts them (``world.py``), disturbs them (``faults.py``) and in the end heals everything.

Ledger. Each worker writes a line before and after each step of a message, without a buffer, so that a killed worker
leaves all lines. A body is unique, and tells whether it is complete. Times are monotonic, one clock for all processes.

    P call topic timeout due bodies     a publish begins        D body nsqd id attempts received    a handler got it
    O call outcome addresses bodies     how it has ended        A body nsqd id attempts answer      its answer follows
    M limit    max_in_flight changes    S seconds  the worker did not run     T ...  its memory and so on     X  a bug
    C nsqd     a connection was lost    Q ...      the counts at its end      L ...  a dead letter of a body

Faults. nsqd: killed, hung up, restarted, stopped (SIGSTOP), its disk full, its channel paused. Its link: late, slow,
cut to pieces, stalled, reset inside of a frame, refused, corrupted (only with TLS, which notices). nsqlookupd and auth
server: killed, stopped. Workers: killed, hung up, restarted, stopped, their clock set to another time.

Invariants (``ledger.py``).

- Confirmed and lost: 0, unless an nsqd that may have the message was killed, or its disk was full: then nsqd itself
  loses what it has only in memory; with --mem-queue-size=0 that is what was in flight or deferred. Every channel must
  finish each body, or its dead letter must.
- Refused or not sent, and handled: 0. Published twice: 0; with allow_duplicates not more than the producer has counted.
- A message that was finished in time comes again only if a fault concerned its nsqd or its consumer before FIN was
  there, or if a killed nsqd reads its disk again.
- Each publish ends at its deadline. After the last fault all channels become empty, and all workers end.
- nsqd's /stats: a consumer has never more in flight than max_in_flight of the last seconds, but during faults of links.
- No handler sees a deferred message early, or bytes that nobody has published, unless nsqd has torn them after its disk
  was full; no greenlet dies; nothing is written to stderr; memory, descriptors, threads and greenlets of a worker that
  lives on stay as they were.

What it does not do: nsqd itself keeps its clock, since no unprivileged program can set one for a process alone.
"""
