"""Define the patterns of the memory test: how to write them, and how to find wrong words.

The memory is a row of blocks of 64-bit words. Block n of a pattern is its first block plus n times
its step, word by word and modulo 2^64. So one addition writes a block, or computes what to expect:

    walking-ones   word i is 1 << (i + seed) % 64, in every block: one bit of 64 is set
    walking-zeros  the complement; after both patterns every bit has held both values
    random         words by seed; the step is odd, so that every block differs from the others
    address        each word is its own address in bytes, which shows words in the wrong place
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

BITS = 64
#: 2^64 over the golden ratio, odd: Knuth, The Art of Computer Programming, 6.4.
STEP = 0x9E3779B97F4A7C15
#: Bytes of a word.
WORD = 8
NAMES = ("walking-ones", "walking-zeros", "random", "address")


def signed(value: int) -> int:
    """Return the low 64 bits of an integer, as a two's complement number."""
    value &= (1 << BITS) - 1
    return value - (1 << BITS) if value >> (BITS - 1) else value


def word(name: str, index: int, words: int, seed: int) -> int:
    """Return word `index` of a memory with blocks of `words`, as in the tensors below."""
    block, place = divmod(index, words)
    if name == "address":
        return signed(index * WORD)
    if name == "random":
        return signed(_drawn(words, seed)[place] + block * STEP)
    walked = 1 << (place + seed) % BITS
    return signed(walked if name == "walking-ones" else ~walked)


def _drawn(words: int, seed: int) -> list[int]:
    """Return the random words of the first block; they repeat after 4093, a prime."""
    pick = random.Random(seed)
    period = [pick.getrandbits(BITS) for _ in range(min(words, 4093))]
    return [period[i % len(period)] for i in range(words)]


class Pattern(NamedTuple):
    """The first block of a pattern on a device, and the step from each block to the next."""

    first: Any
    step: int

    def write(self, torch: Any, block: Any, number: int) -> None:
        """Write block `number`, which may be shorter than the first."""
        torch.add(self.first[: len(block)], signed(self.step * number), out=block)

    def differing(self, torch: Any, block: Any, number: int, scratch: Any) -> Any:
        """Return the number of wrong words of block `number`, as a tensor, without waiting."""
        self.write(torch, scratch[: len(block)], number)
        return (block != scratch[: len(block)]).sum()


def pattern(torch: Any, name: str, words: int, seed: int, device: str) -> Pattern:
    """Return a pattern with blocks of `words`, which is a multiple of 64."""
    places = torch.arange(words, dtype=torch.int64, device=device)
    if name == "address":
        return Pattern(places * WORD, words * WORD)
    if name == "random":
        period = [signed(value) for value in _drawn(min(words, 4093), seed)]
        drawn = torch.tensor(period, dtype=torch.int64, device=device)
        return Pattern(drawn[places % len(period)], STEP)
    ones = torch.ones_like(places) << ((places + seed) % BITS)
    return Pattern(ones if name == "walking-ones" else ~ones, 0)


class Fault(NamedTuple):
    """The number of wrong words, and the first of them."""

    words: int
    #: Position in bytes from the start of the tested memory.
    offset: int
    wrote: int
    read: int

    def __str__(self) -> str:
        mask = (1 << BITS) - 1
        odd = (self.wrote ^ self.read) & mask
        which = ", ".join(str(bit) for bit in range(BITS) if odd >> bit & 1)
        return (
            f"{self.words} words differ, first at byte {self.offset:#x}: wrote "
            f"{self.wrote & mask:#018x}, read {self.read & mask:#018x}, bits {which}"
        )


def find(torch: Any, one: Pattern, blocks: Any, counts: Any, words: int) -> Fault | None:
    """Return the first wrong word, from the counts of `differing`; None if no word is wrong."""
    wrong = torch.stack(counts).tolist()
    at = next((number for number, count in enumerate(wrong) if count), None)
    if at is None:
        return None
    wanted = torch.empty_like(blocks[at])
    one.write(torch, wanted, at)
    odd = (blocks[at] != wanted).nonzero().view(-1)
    # An intermittent fault may be gone by now.
    place = int(odd[0]) if len(odd) else 0
    return Fault(
        words=sum(wrong),
        offset=(at * words + place) * WORD,
        wrote=int(wanted[place]),
        read=int(blocks[at][place]),
    )
