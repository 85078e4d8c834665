"""Words that a sentence is to be made of. A set of words belongs to one split only."""

import random
import zlib

NOUNS = """
anchor apple basket bell bench bicycle blanket boat bottle branch bread bridge bucket button cabin candle carpet cellar
chair cherry clock cloud coat compass corner cottage cup curtain desk donkey drawer engine feather fence field fiddle
flute forest garden gate glove goat hammer harbour hat hill honey horse island jacket jar kettle kite ladder lake lamp
lantern lemon letter lighthouse loaf map market meadow mill morning needle nest notebook oak onion orchard oven paddle
paper parcel path pebble pencil piano pillow plate pocket pond postcard potato quilt raft rain ribbon river road roof
rope sail saddle scarf school shelf ship shoe shore sister sled soup spoon stable station stone stool street sugar table
tailor teapot tent thread ticket tiger tower train tree tulip tunnel umbrella valley village violin wagon wall walnut
wheel window winter wood
""".split()  # noqa: SIM905 (a list of quoted words is harder to read)

HELDOUT_SHARE = 5
"""One in this many sets of words belongs to the held-out split."""
COUNT_BY_LEVEL = (2, 3, 4)
SHORTEST, LONGEST = 6, 16
"""Words of a sentence."""

_FRAMES = {
    2: "The {} stands quietly beside the {} today.",
    3: "The {} stands beside the {} and behind the {}.",
    4: "Between the {} and the {} stands a {} with a {}.",
}


def make_words(seed: int, split: str, level: int) -> list[str]:
    """The same words for the same arguments; a held-out set never occurs in training."""
    chance = random.Random(f"{split}:{level}:{seed}")
    while True:
        words = chance.sample(NOUNS, COUNT_BY_LEVEL[level])
        is_heldout = zlib.crc32(" ".join(sorted(words)).encode()) % HELDOUT_SHARE == 0
        if is_heldout == (split == "heldout"):
            return words


def make_sentence(words: list[str]) -> str:
    """Plain, and holds them all."""
    return _FRAMES[len(words)].format(*words)


def words_of(sentence: str) -> list[str]:
    """In lower case, without punctuation."""
    return [word.strip(".,;:!?\"'()").lower() for word in sentence.split()]
