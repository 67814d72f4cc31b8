"""Blocks over plain TCP: always there, two-sided, fenced by closing the socket.

Options, all of them optional:

| option | default | meaning |
|---|---|---|
| ``listen_host`` | ``127.0.0.1`` | IP address to serve on |
| ``listen_port`` | 0 | port to serve on; 0 takes a free one |
| ``advertise`` | | ``ip:port`` under which peers reach us, where it differs |
| ``connections`` | 0 | connections of one read; 0: half the cores, from 2 to 8 |
| ``chunk_blocks`` | 0 | blocks that go out together with their digests; 0: by size |
| ``timeout_s`` | 30 | longest that one read is served |
| ``reads`` | 16 | reads of ours under way; ``post`` raises beyond it |
| ``serve_connections`` | 64 | connections served; idle ones make room, else ``busy`` |
| ``serve_transfers`` | 32 | transfers served; beyond it ``busy`` |
| ``serve_bytes`` | 16 GiB | bytes of the transfers served; beyond it ``busy`` |
| ``tls_cert_file`` | | our certificate (PEM), for both roles; needs the next two |
| ``tls_key_file`` | | its key (PEM), without a password |
| ``tls_ca_file`` | | the CA (PEM) whose certificates we accept |

A read that is refused as ``busy`` holds no memory at the source; the target takes another backend
or recomputes. With TLS both ends need it: see :mod:`kvferry_backends.tcp.tls`.
"""
