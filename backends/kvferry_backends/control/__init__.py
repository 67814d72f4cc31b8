"""Conversations between the two ends of a transfer, for backends whose source takes part.

A data plane that is two-sided, or whose source packs blocks before they are read, needs to say a
few words about each transfer: what is wanted, where it lies now, that a slot is free again. They
travel here: over TCP, as length-prefixed msgpack frames, on blocking sockets with deadlines, one
conversation at a time on a connection. What a conversation is about is the backend's own affair;
here are only who may begin one, its bounds and its end.

Target::

    calls = Calls("nixl")                                   # one per backend object
    call = calls.begin(address, instance, deadline)         # nothing is sent yet
    call.open(transfer=..., grant=..., blocks=..., body=b"what the backend wants to say")
    call.receive() -> bytes        # one message; StreamError("refused" | "error", ...) if it ended
    call.heard(within_s)           # whether receive() has something, for those who also do others
    call.send(b"...")
    call.finish()                  # waits for the source's end; keeps the connection for the next
    call.cut()                     # from any thread: every wait of this call ends, as "aborted"
    call.close()                   # always, also after finish()
    calls.drop(address); calls.close()

Source::

    def serve(asked: Asked) -> None:      # on the connection's thread, one per conversation
        asked.transfer, asked.blocks, asked.body      # the grant for these blocks was checked
        asked.talk.send(...); asked.talk.receive()    # StreamError when the target is gone
        asked.permit()                                # asks Authorize again; raises Refusal
        raise Refusal("a short reason")               # the target's open/receive/finish says so

    server = ControlServer("nixl", instance, authorize, blocks, serve, host=..., port=...)
    server.port; server.close()           # cuts every conversation, joins every thread

The source answers an opening once the instance is the right one and ``Authorize`` permits the
blocks, before it calls ``serve``. Points in time are of ``time.monotonic()``; a conversation's
deadline bounds all its waits on both ends. One thread may send while another receives.
"""
