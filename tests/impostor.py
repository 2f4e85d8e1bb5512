"""A server that pretends to be a coordinator and keeps every byte it is sent."""

import contextlib
import socket
import ssl
import threading


class Impostor:
    """Listens on loopback, with TLS when it has a certificate, else plainly; answers nothing."""

    def __init__(self, certificate=None, context=None):
        self.received = b""
        self.connections = 0
        #: handshakes that its clients finished
        self.handshakes = 0
        self._context = context
        if certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(certificate.path, certificate.key_path)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5)
                self._hear(connection)

    def _hear(self, connection):
        if self._context is None:
            self.received += connection.recv(4096)
            return
        with self._context.wrap_socket(connection, server_side=True) as secured:
            self.handshakes += 1
            while data := secured.recv(4096):
                self.received += data

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
