"""How each fault looks on the wire."""

from collections.abc import Awaitable, Callable

from .answers import Answer, error, response
from .connection import Connection
from .faults import Fault, Kind

Misbehaviour = Callable[[Connection, Answer, Fault], Awaitable[None]]
_BLOCK = b"x" * 65536
_TO_BE_SEEN = 0.01
"""Seconds between the last bytes and the reset that would overtake them."""


async def refuse(connection: Connection, answer: Answer, fault: Fault) -> None:
    """What was on its way when the port closed."""
    del answer, fault
    connection.reset()


async def die_before_first_byte(connection: Connection, answer: Answer, fault: Fault) -> None:
    del answer, fault
    connection.reset()


async def die_after_head(connection: Connection, answer: Answer, fault: Fault) -> None:
    del fault
    await connection.send(answer.head)
    connection.close()


async def garbage(connection: Connection, answer: Answer, fault: Fault) -> None:
    del answer, fault
    await connection.send(b"\x16\x03\x01\x00\xff not HTTP at all \x00\r\n\r\n")
    connection.close()


async def status(connection: Connection, answer: Answer, fault: Fault) -> None:
    del answer
    await connection.send(error(fault.status, f"a worker with a fault: {fault.status}"))


async def huge_header(connection: Connection, answer: Answer, fault: Fault) -> None:
    del fault
    line, _, rest = answer.head.partition(b"\r\n")
    await connection.send(line + b"\r\nx-huge: " + b"x" * (1 << 20) + b"\r\n" + rest)
    await connection.send(b"".join(answer.pieces))


async def die_mid_stream(connection: Connection, answer: Answer, fault: Fault) -> None:
    await _send_part(connection, answer, fault)
    connection.close()


async def rst_mid_stream(connection: Connection, answer: Answer, fault: Fault) -> None:
    await _send_part(connection, answer, fault)
    await connection.pause(_TO_BE_SEEN)
    connection.reset()


async def stall(connection: Connection, answer: Answer, fault: Fault) -> None:
    await _send_part(connection, answer, fault)
    await connection.hang()


async def bad_chunking(connection: Connection, answer: Answer, fault: Fault) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n" % answer.content_type)
    await connection.send(b"transfer-encoding: chunked\r\n\r\n")
    for piece in answer.pieces[: fault.after]:
        framed = piece if answer.content_type == b"text/event-stream" else b"%x\r\n%b\r\n" % (len(piece), piece)
        await connection.send(framed)
    await connection.send(b"zz\r\nnot a chunk\r\n")
    await connection.hang()


async def length_too_long(connection: Connection, answer: Answer, fault: Fault) -> None:
    del fault
    promised = response(answer.body + b"x" * 16, content_type=answer.content_type)
    await connection.send(promised[:-16])
    connection.close()


async def length_too_short(connection: Connection, answer: Answer, fault: Fault) -> None:
    del fault
    cut = len(answer.body) // 2
    await connection.send(response(answer.body[:cut], content_type=answer.content_type) + answer.body[cut:])


async def huge(connection: Connection, answer: Answer, fault: Fault) -> None:
    kind = answer.content_type
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, fault.size)
    await connection.send(head)
    for _ in range(fault.size // len(_BLOCK)):
        await connection.send(_BLOCK)
    await connection.send(_BLOCK[: fault.size % len(_BLOCK)])


async def trickle(connection: Connection, answer: Answer, fault: Fault) -> None:
    data = answer.head + b"".join(answer.pieces)
    for at in range(len(data)):
        await connection.send(data[at : at + 1])
        await connection.pause(fault.seconds)


async def interim(connection: Connection, answer: Answer, fault: Fault) -> None:
    del fault
    await connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    await connection.send(b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n")
    await connection.send(answer.head + b"".join(answer.pieces))


async def _send_part(connection: Connection, answer: Answer, fault: Fault) -> None:
    await connection.send(answer.head)
    for piece in answer.pieces[: fault.after]:
        await connection.send(piece)


MISBEHAVIOURS: dict[Kind, Misbehaviour] = {
    Kind.REFUSE: refuse,
    Kind.DIE_BEFORE_FIRST_BYTE: die_before_first_byte,
    Kind.DIE_AFTER_HEAD: die_after_head,
    Kind.GARBAGE: garbage,
    Kind.STATUS: status,
    Kind.HUGE_HEADER: huge_header,
    Kind.DIE_MID_STREAM: die_mid_stream,
    Kind.RST_MID_STREAM: rst_mid_stream,
    Kind.STALL: stall,
    Kind.BAD_CHUNKING: bad_chunking,
    Kind.LENGTH_TOO_LONG: length_too_long,
    Kind.LENGTH_TOO_SHORT: length_too_short,
    Kind.HUGE: huge,
    Kind.TRICKLE: trickle,
    Kind.INTERIM: interim,
}
"""Once the request has been read. The others are about when to read, wait or close: see `fault_worker`."""
