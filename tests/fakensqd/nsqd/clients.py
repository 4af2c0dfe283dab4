"""A session of the emulated nsqd and its client, without a socket."""

from fakensqd.effects import Close, Send
from fakensqd.nsqd.session import Session
from gnsq.protocol.frames import MESSAGE, FrameDecoder, decode_message


class SessionClient:
    """Sends bytes; returns frames, and effects that neither send nor close."""

    def __init__(self, broker, **arguments):
        self.broker = broker
        self.woken = 0
        self.now = 0.0
        self.closed = False
        self.sends = 0
        self._decoder = FrameDecoder()
        self.session = Session(broker, on_wake=self._wake, **arguments)

    def _wake(self):
        self.woken += 1
        return True

    def _decoded(self, effects):
        found = []
        for effect in effects:
            match effect:
                case Send(data):
                    self.sends += 1
                    found += self._decoder.feed(data)
                case Close():
                    self.closed = True
                case _:
                    found.append(effect)
        return found

    def send(self, data):
        return self._decoded(self.session.receive(data, self.now))

    def resume(self, answer):
        return self._decoded(self.session.resume(answer, self.now))

    def end(self):
        return self._decoded(self.session.end_of_input(self.now))

    def pump(self):
        return self._decoded(self.session.pump(self.now))

    def tick(self, now):
        self.now = now
        return self._decoded(self.session.tick(now))

    def bodies(self):
        """Pump; returns the bodies of the messages."""
        return [decode_message(data)[3] for kind, data in self.pump() if kind == MESSAGE]
