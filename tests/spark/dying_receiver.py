"""Program: a receiver that ends itself with SIGKILL at one point of its first segment.

``python -m tests.spark.dying_receiver POINT SPOOL TOPIC CHANNEL NSQD_TCP``. Points: ``write``, before the segment is
written; ``durable``, before the first FIN; ``fins``, when half of the FINs are at nsqd; ``never``.
"""

import os
import signal
import sys

import gevent

from gnsq.nsqd.in_flight import InFlightMessages
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver.receiver import Receiver
from gnsq.spark.spool.spool import Spool, SpoolWriter


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point):
    write, finish = SpoolWriter.write, InFlightMessages.finish_all
    # Rows of the first segment.
    rows = []

    def watched_write(writer, number, columns):
        if point == "write":
            die()
        size = write(writer, number, columns)
        if point == "durable":
            die()
        rows.append(len(columns[0]))
        return size

    def watched_finish(answers, ids):
        if point == "fins":
            finish(answers, ids[: rows[0] // 2])
            for _ in range(3):
                gevent.sleep(1e-6)  # not 0: the loop runs, and the FINs are sent
            die()
        finish(answers, ids)

    SpoolWriter.write, InFlightMessages.finish_all = watched_write, watched_finish


def main():
    point, spool, topic, channel, tcp = sys.argv[1:]
    arm(point)
    options = ReadOptions(topic=topic, channel=channel, nsqd_tcp_addresses=(tcp,))
    Receiver(options, Spool(spool)).start()
    gevent.sleep(600)


if __name__ == "__main__":
    main()
