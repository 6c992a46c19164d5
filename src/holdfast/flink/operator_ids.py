"""How Flink makes the id of an operator of its uid.

Source:
    Flink, StreamGraphHasherV2.generateUserSpecifiedHash; Guava, Hashing.murmur3_128 with seed 0.
"""

_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def operator_id(uid: str) -> str:
    """The id of the operator with this uid, in hexadecimal digits; metadata before Flink 2.0 has ids alone."""
    data = uid.encode()
    h1 = h2 = 0
    whole = len(data) & ~15
    for start in range(0, whole, 16):
        h1 ^= _mixed(_half(data, start), _C1, 31, _C2)
        h1 = ((_rotated(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= _mixed(_half(data, start + 8), _C2, 33, _C1)
        h2 = ((_rotated(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    h2 ^= _mixed(_half(data, whole + 8), _C2, 33, _C1)
    h1 ^= _mixed(_half(data, whole), _C1, 31, _C2)
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    h1, h2 = _finished(h1), _finished(h2)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (h1.to_bytes(8, "little") + h2.to_bytes(8, "little")).hex()


def _half(data: bytes, start: int) -> int:
    return int.from_bytes(data[start : start + 8], "little")


def _mixed(half: int, first: int, bits: int, second: int) -> int:
    return _rotated(half * first & _MASK, bits) * second & _MASK


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK


def _finished(h: int) -> int:
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD & _MASK
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return h ^ h >> 33
