"""Text for prompts that a trace only names: equal ids become equal words, other ids become other words.

A token is four bytes, a blank and a common English word of three letters, which most tokenizers read as one token.
"""

from functools import lru_cache

from warmroute_router.blocks import BYTES_PER_TOKEN
from xxhash import xxh3_128_digest

from ..traces import TraceRequest

_CACHE_BYTES = 64 * 1024 * 1024
_HASH_BYTES = 16
WORDS = (
    "the and for are but not you all any can had her was one our out day get has him his how man new now old see two "
    "way who boy did its let put say she too use act add age ago aid aim air arm art ask bad bag bar bed bet big bit "
    "box bus buy car cat cow cry cup cut dad dig dog dry due ear eat egg end eye fan far fat few fit fix fly fun gas "
    "got guy hat hit hot ice job joy key kid law lay leg lie lip log lot low map may men met mix mom mud net nod nor "
    "nut odd off oil own pan pay pen per pet pie pig pin pit pop pot pro ran raw red rid row run sad sat sea set sit "
    "six sky son sum sun tax tea ten tie tip toe ton top toy try van via war web wet why win won yes yet zoo arc ash "
    "ate axe ban bat bay bee beg bid bin bow bug cab cap cop dam den dot ego era eve fee fig fog fox fur gap gel gem "
    "gut ham hay hid hip hop hub hug ink jam jar jaw jet jug lab lap led lid mad mat nap oak oat owl pad pal paw pea "
    "peg pub pup ram rat ray rib rim rip rod rub rug sin sip ski spy sub tab tag tan tap tar tin tub tug vet wax wed "
    "zip ace ale ant"
)
_LETTERS = [WORDS[place::BYTES_PER_TOKEN].encode() for place in range(BYTES_PER_TOKEN - 1)]
"""For each place in a word, the letter that each of the 256 words has there."""


class Words:
    def __init__(self, block_tokens: int, seed: int) -> None:
        """Another seed makes other text of everything, which no cache has seen yet."""
        self._block_tokens = block_tokens
        self._seed = seed
        kept = max(1, _CACHE_BYTES // (block_tokens * BYTES_PER_TOKEN))
        self._block = lru_cache(maxsize=kept)(self._spell_block)

    def prompt(self, request: TraceRequest, number: int) -> str:
        """As long as the request says. What its blocks do not cover is nobody else's: `number` tells it apart."""
        rest = request.input_tokens - len(request.block_ids) * self._block_tokens
        return "".join(map(self._block, request.block_ids)) + self.own(rest, number)

    def own(self, tokens: int, number: int, part: int = 0) -> str:
        """Text that belongs to one request, or to one part of one conversation."""
        return _spelled(f"{self._seed} own {number} {part}", tokens)

    def _spell_block(self, block: int) -> str:
        return _spelled(f"{self._seed} block {block}", self._block_tokens)


def _spelled(name: str, tokens: int) -> str:
    """Each byte of a stream of hashes chooses a word; its three letters are looked up for all words at once."""
    seed = name.encode()
    choice = b"".join([xxh3_128_digest(seed, place) for place in range(0, tokens, _HASH_BYTES)])[:tokens]
    text = bytearray(b" ") * (tokens * BYTES_PER_TOKEN)
    for place, letters in enumerate(_LETTERS, 1):
        text[place::BYTES_PER_TOKEN] = choice.translate(letters)
    return text.decode("ascii")
