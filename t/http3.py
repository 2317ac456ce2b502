#!/usr/bin/env python3
"""A client of HTTP/3 for t/http3.t.

usage: http3.py PORT read|leave SCRIPT

Asks for a stream that the echo engine makes of the script.  read: print the
status and all that comes.  leave: print the status, stop reading with the
first bytes, print "left", and keep the connection until killed.
"""

import asyncio
import json
import ssl
import sys

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.h3.connection import H3_ALPN, ErrorCode, H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.events = asyncio.Queue()

    def quic_event_received(self, event):
        for e in self.http.handle_event(event):
            self.events.put_nowait(e)

    def post(self, path, body):
        stream = self._quic.get_next_available_stream_id()
        self.http.send_headers(stream, [
            (b":method", b"POST"), (b":scheme", b"https"),
            (b":authority", b"localhost"), (b":path", path),
            (b"content-type", b"application/json")])
        self.http.send_data(stream, json.dumps(body).encode(), True)
        self.transmit()
        return stream

    def stop(self, stream):
        self._quic.stop_stream(stream, ErrorCode.H3_REQUEST_CANCELLED)
        self.transmit()


async def main(port, what, script):
    configuration = QuicConfiguration(alpn_protocols=H3_ALPN,
                                      verify_mode=ssl.CERT_NONE)
    async with connect("127.0.0.1", port, configuration=configuration,
                       create_protocol=Client) as client:
        stream = client.post(b"/v1/chat/completions", {
            "model": "echo", "stream": True,
            "messages": [{"role": "user", "content": script}]})
        while True:
            e = await client.events.get()
            if isinstance(e, HeadersReceived):
                print(dict(e.headers)[b":status"].decode(), flush=True)
            elif what == "leave":
                client.stop(stream)
                print("left", flush=True)
                await asyncio.Event().wait()
            else:
                sys.stdout.write(e.data.decode())
            if e.stream_ended:
                return


asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
