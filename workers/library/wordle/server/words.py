"""Common words of five letters, and which of them a task is about. A word belongs to one split only."""

import random
import zlib

WORDS = """
about above actor acute admit adopt adult after again agent agree ahead alarm album alert alike alive allow alone along
alter amber among anger angle angry apart apple apply apron arena argue arise armor arrow aside asset attic audio audit
avoid award aware bacon badge badly baker basic basil basin batch beach beard beast began begin being bench berry birth
black blade blame blank blast blaze blend bless blind block bloom board bonus boost booth bound brain brake brand brave
bread break brick bride brief bring broad broom brown brush build bunch burst cabin cable camel candy canoe cargo carry
carve catch cause cedar chain chair chalk charm chart chase cheap check cheek cheer chess chest chief child chill choir
chose cider cigar civic claim class clean clear clerk click cliff climb clock close cloth cloud clown coach coast cocoa
color coral couch could count court cover crack craft crane crash crawl cream creek crisp cross crowd crown crumb crust
curve cycle daily dairy daisy dance debut decay delay depth diary digit diner dirty ditch dizzy dodge doing donor doubt
dough dozen draft drain drama drawn dream dress dried drift drill drink drive dusty dwell eager eagle early earth eight
elbow elder elect empty enemy enjoy enter entry equal error essay event every exact exist extra fable faint fairy faith
false fancy fault feast fence ferry fever field fifth fight final first flame flash fleet flesh float flock flood floor
flour fluid flute focus force forge forth found frame fresh frost frown fruit fully funny ghost giant given glass globe
glory glove grace grade grain grand grant grape graph grasp grass great green greet grill groan group grove growl guard
guess guest guide habit handy happy harsh haste heart heavy hedge hello hinge hobby honey honor horse hotel house human
humor hurry ideal image index inner input irony issue ivory jelly jewel joint joker judge juice jumbo kayak knife knock
known label labor large laser later laugh layer learn lease least leave ledge lemon level light lilac limit linen liver
lobby local lodge logic loose lorry loyal lucky lunch magic major maker mango maple march marsh match maybe mayor medal
melon mercy merge merit merry metal meter midst might minor minus model money month moral motor mount mouse mouth movie
music naval nerve never night noble noise north novel nurse ocean offer often olive onion opera orbit order organ other
otter outer oxide paint panel panic paper party pasta patch pause peace peach pearl pedal penny phase phone photo piano
piece pilot pinch pitch pizza place plain plane plant plate plaza plumb point polar porch pouch pound power press price
pride prime print prize proof proud pulse punch pupil purse quack queen query quest quick quiet quilt quite quota quote
radar radio raise rally ranch range rapid ratio reach react ready realm rebel refer relax reply rider ridge rifle right
rigid rinse risky rival river roast robin robot rocky rough round route royal rugby ruler rural salad salon sauce scale
scarf scene scent scope score scout screw sense serve seven shade shake shape share shark sharp sheep sheet shelf shell
shine shirt shock shore short shout shown shrub sight silky since sixth skill skirt slate sleep slice slide slope small
smart smell smile smoke snack snake sneak solar solid solve sorry sound south space spare spark speak spear speed spell
spend spice spike spine spoon sport spray squad stack staff stage stain stair stake stale stand start state steak steal
steam steel steep stern stick still sting stock stone stool store storm story stove straw strip study stuff style sugar
suite sunny super surge swamp swarm sweat sweep sweet swift swing sword table taken taste teach tempo tenor thank theme
thick thief thing think third thorn three throw thumb tidal tiger tight timer title toast today token tooth topic torch
total touch tough towel tower toxic trace track trade trail train treat trend trial tribe trick troop truck truly trunk
trust truth tulip twice twist uncle under union unite until upper upset urban usage usual valid value valve vapor vault
venue verse video visit vital vivid vocal voice voter wagon waist waste watch water weary weigh whale wheat wheel where
which while white whole widen width woman world worry worth would wound wrist write wrong yacht yearn yield young youth
zebra
""".split()  # noqa: SIM905 (a list of quoted words is harder to read)

LENGTH = 5
HELDOUT_SHARE = 4
"""One in this many words belongs to the held-out split."""
SHOWN_BY_LEVEL = (3, 2, 1, 0)
"""Letters of the word that are shown at the start."""

OPEN = "_"


def belongs_to(word: str) -> str:
    """The split of a word."""
    return "heldout" if zlib.crc32(word.encode()) % HELDOUT_SHARE == 0 else "train"


WORDS_BY_SPLIT = {split: [word for word in WORDS if belongs_to(word) == split] for split in ("train", "heldout")}


def make_task(seed: int, split: str, level: int) -> tuple[str, str]:
    """The word, and what of it is shown (`_` for a hidden letter)."""
    chance = random.Random(f"{split}:{level}:{seed}")
    word = chance.choice(WORDS_BY_SPLIT[split])
    shown = set(chance.sample(range(LENGTH), SHOWN_BY_LEVEL[level]))
    return word, "".join(letter if place in shown else OPEN for place, letter in enumerate(word))
