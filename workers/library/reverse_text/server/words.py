"""Plain short words, and texts made of them. A text belongs to one split only."""

import random
import zlib

WORDS = """
able acid arch army atom aunt baby back ball band bank barn bath bear bell belt bird blue boat body bold bone book
boot born bowl brave bread brick bridge bright brown brush cable cake calm camp candle card cart castle chain chair
chalk cheese chest child circle city clay clean clear clock cloth cloud coast coat coin cold corn corner cotton cream
crowd cup curve dance dark dawn deep deer desk door dream dress drum dust eagle early earth east edge eight engine
evening fair farm feather fence field fig fire fish flag flame flat floor flour flute fog forest fork fox frame fresh
fruit garden gate ghost gift glass globe gold grain grape grass green guest hair hammer hand harbour hat hawk heart
hedge herb hill honey horse hotel house ice ink iron island ivory jacket jar jewel judge juice key king kitchen kite
knee knife lake lamp land large lawn leaf lemon letter light lime lion lock long lunch machine map maple march mask
meadow melon metal milk mill mint mirror moon morning moss moth mouse music nail neck nest night north nose nurse
oak ocean olive onion orange oven owl paint palm paper park path peach pearl pencil pepper piano picture pilot pine
plain planet plate plum pocket poem pond potato pride prince pump quick quiet rabbit rain ready ribbon rice ring river
road rock roof room root rope rose round royal rug sail salt sand school sea seed seven shade sharp sheep shell ship
shirt shoe silk silver sister sky sleep slow small smoke snow soap soft song soup south spice spoon spring square star
steam stone storm straw street sugar summer sun swan sweet table tail tea tent thread tiger tile toast tooth torch
tower town train tree tulip turtle valley velvet village vine violin voice wagon wall walnut warm water wave wax
weather west wheat wheel white wide wild wind window wing winter wolf wood wool yard yellow young zebra
""".split()  # noqa: SIM905 (a list of quoted words is harder to read)

HELDOUT_SHARE = 5
"""One in this many texts belongs to the held-out split, whichever task draws it."""


def make_text(seed: int, split: str, word_count: int) -> str:
    """The same text for the same arguments; a held-out text never occurs in training."""
    chance = random.Random(f"{split}:{word_count}:{seed}")
    while True:
        text = " ".join(chance.choices(WORDS, k=word_count))
        is_heldout = zlib.crc32(text.encode()) % HELDOUT_SHARE == 0
        if is_heldout == (split == "heldout") and text != text[::-1]:
            return text
