"""Rows read from the pages of a damaged SQLite file, where SQLite itself cannot get to them any
more.

Every leaf of a table says how many rows it has and where, so it can be read without the tree above
it. Which table the rows are of is told by their values. The format:
https://www.sqlite.org/fileformat2.html
"""

import struct
from collections.abc import Iterator
from mmap import mmap

Value = int | float | str | bytes | None
_LEAF = 0x0D
_SIZES = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 7: 8, 8: 0, 9: 0}


def rows(data: mmap) -> Iterator[tuple[int, list[Value]]]:
    """Each row of each table's leaf that is in use and can be read, with its rowid."""
    size = int.from_bytes(data[16:18])
    size = 65536 if size == 1 else size
    if size < 512 or size & (size - 1):
        size = 4096  # the header is damaged; this is what ours are made with
    usable = size - data[20] if data[20] <= 32 else size
    unused = _unused(data, size)
    for number in range(1, len(data) // size + 1):
        page = data[(number - 1) * size : number * size]
        head = 100 if number == 1 else 0
        if page[head] != _LEAF or number in unused:
            continue
        for cell in range(int.from_bytes(page[head + 3 : head + 5])):
            at = int.from_bytes(page[head + 8 + 2 * cell : head + 10 + 2 * cell])
            try:
                yield _cell(data, size, usable, page, at)
            except (ValueError, IndexError, KeyError, struct.error):
                continue  # this row is lost; its neighbours need not be


def _unused(data: mmap, size: int) -> set[int]:
    """The pages of the free list: they still hold rows as they were once."""
    free: set[int] = set()
    trunk = int.from_bytes(data[32:36])
    while 0 < trunk <= len(data) // size and trunk not in free:
        page = data[(trunk - 1) * size : trunk * size]
        count = min(int.from_bytes(page[4:8]), size // 4 - 2)
        free |= {trunk, *struct.unpack(f">{count}I", page[8 : 8 + 4 * count])}
        trunk = int.from_bytes(page[:4])
    return free


def _cell(data: mmap, size: int, usable: int, page: bytes, at: int) -> tuple[int, list[Value]]:
    length, at = _varint(page, at)
    rowid, at = _varint(page, at)
    if length > len(data):
        raise ValueError("longer than the file")
    local, most, least = length, usable - 35, (usable - 12) * 32 // 255 - 23
    if length > most:
        local = least + (length - least) % (usable - 4)
        local = local if local <= most else least
    payload = page[at : at + local]
    following = int.from_bytes(page[at + local : at + local + 4])
    while len(payload) < length:
        begin = (following - 1) * size
        if begin < 0 or begin + size > len(data):
            raise ValueError("the chain of pages is broken")
        payload += data[begin + 4 : begin + min(usable, 4 + length - len(payload))]
        following = int.from_bytes(data[begin : begin + 4])
    return rowid - (1 << 64) if rowid >> 63 else rowid, _record(payload)


def _record(payload: bytes) -> list[Value]:
    end, at = _varint(payload, 0)
    types = []
    while at < end:
        kind, at = _varint(payload, at)
        types.append(kind)
    values: list[Value] = []
    for kind in types:
        length = (kind - 12) // 2 if kind >= 12 else _SIZES[kind]
        values.append(_value(kind, payload[at : at + length]))
        at += length
    if at != len(payload):
        raise ValueError("the row does not end where it should")
    return values


def _value(kind: int, data: bytes) -> Value:
    if kind == 0:
        return None
    if kind in (8, 9):
        return kind - 8
    if kind == 7:
        return float(struct.unpack(">d", data)[0])
    if kind < 7:
        return int.from_bytes(data, signed=True)
    return data.decode() if kind % 2 else data


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(9):
        byte = data[at + place]
        if place == 8:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + place + 1
    raise AssertionError("a varint has nine bytes at most")
