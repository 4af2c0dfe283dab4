"""Program: a receiver that ends itself with SIGKILL at one point of its first segment.

``python -m tests.spark.dying_receiver POINT SPOOL TOPIC CHANNEL NSQD_TCP NSQD_HTTP``. Points: ``write``, before the
segment is written; ``durable``, before the first FIN; ``fins``, when nsqd has executed half of the FINs; ``never``.
"""

import os
import signal
import sys

import gevent

from gnsq import NsqdHTTPClient
from gnsq.nsqd.in_flight import InFlightMessages
from gnsq.spark.options import ReadOptions
from gnsq.spark.receiver.receiver import Receiver
from gnsq.spark.spool.spool import Spool, SpoolWriter


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point, finished):
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
            half = ids[: rows[0] // 2]
            finish(answers, half)
            # What was sent would not be enough: nsqd loses it if the dead process has not read all that came.
            while finished() < len(half):
                gevent.sleep(0.01)
            die()
        finish(answers, ids)

    SpoolWriter.write, InFlightMessages.finish_all = watched_write, watched_finish


def main():
    point, spool, topic, channel, tcp, http = sys.argv[1:]
    client = NsqdHTTPClient.from_url(http)

    def finished():
        [found] = client.stats(topic, channel)["topics"][0]["channels"]
        return sum(each["finish_count"] for each in found["clients"])

    arm(point, finished)
    options = ReadOptions(topic=topic, channel=channel, nsqd_tcp_addresses=(tcp,))
    Receiver(options, Spool(spool)).start()
    gevent.sleep(600)


if __name__ == "__main__":
    main()
