"""A reply in no language: unpronounceable words, letters of many scripts, control characters."""

import re
import unicodedata
from itertools import pairwise

from backend.domain.detectors.run_view import Batch
from backend.domain.detectors.spec import COMMON, DetectorSpec, Flags, ThresholdSpec, ThresholdValues
from backend.domain.vocabulary import Severity

SPEC = DetectorSpec(
    id="gibberish",
    title="Gibberish",
    description="A reply consists of unpronounceable words, mixed scripts or control characters.",
    formula="share of words of 4 letters or more without a vowel, with 5 consonants in a row or with a pair of"
    " letters that no language has > 0.3 in 8 words or more; or script switches inside words > 0.1",
    source="script switch and non-dictionary rates of text quality filters",
    settings={
        "unsayable": ThresholdSpec(0.3, "Share of unpronounceable words above which a reply is flagged.", maximum=1),
        "fewest_words": ThresholdSpec(8, "Minimum number of words in a reply."),
        "switches": ThresholdSpec(0.1, "Share of words with mixed scripts above which a reply is flagged.", maximum=1),
        "common": COMMON,
    },
)

_WORD = re.compile(r"\b[a-z]{4,}\b")
_STRANGE = """
bq bx cb cf cg cj cv cw cx dq dx fb fc fd fg fh fj fk fp fq fv fw fx fz gb gc gj gk gp gq gv gx gz hj hk hq hv hx hz jb
jc jd jf jg jh jj jk jl jm jn jp jq jr js jt jv jw jx jy jz kg kj kq kv kx kz lj lq lx lz mg mj mk mq mv mw mx mz nx pj
pq pv px pz qb qc qd qe qf qg qh qj qk ql qm qn qo qp qq qr qs qt qv qw qx qy qz rx sj sx sz tj tq tx vb vc vd vf vg vh
vj vk vm vn vp vq vt vw vx vz wj wk wm wp wq wu wv wx wz xb xd xf xg xj xk xm xn xq xr xs xv xw xz zb zc zd zf zg zh zj
zk zm zn zp zq zr zs zv zx
""".split()  # noqa: SIM905 (a list of quoted pairs is harder to read)
"""Pairs of letters that words of languages with Latin letters hardly have, forwards or backwards."""
_UNSAYABLE = re.compile(rf"[^aeiouy]+|.*(?:[^aeiouy]{{5}}|{'|'.join(_STRANGE)}).*")
_PROGRAM = re.compile(r"```.*?(?:```|\Z)|<code>.*?(?:</code>|\Z)", re.DOTALL)
"""Names in programs are abbreviations."""
_WITH_LETTERS_OF_SCRIPTS = re.compile(r"[^\W\d_]{3,}")


def find(batch: Batch, thresholds: ThresholdValues) -> Flags:
    found = {row.id: worst for row in batch.rows if (worst := worst_nonsense(row.replies, thresholds))}
    for row in batch.uncommon([row for row in batch.rows if row.id in found], thresholds["common"]):
        share, turn, kind = found[row.id]
        is_rewarded = row.id in batch.earning
        yield row.flag(
            score=(0.5 + share / 2) * (1.0 if is_rewarded else 0.7),
            sentence=f"Turn {turn + 1} is not written in any language: {share:.0%} are {kind}.",
            marks=row.mark_reply(turn),
            cluster=kind,
            severity=Severity.WARNING if is_rewarded else Severity.NOTE,
        )


def worst_nonsense(replies: tuple[str, ...], thresholds: ThresholdValues) -> tuple[float, int, str] | None:
    """Return the largest share of nonsense in a reply, with its turn and kind."""
    found = []
    for turn, reply in enumerate(replies):
        text = _PROGRAM.sub(" ", reply[:5_000])
        words = _WORD.findall(text.lower())
        if len(words) >= thresholds["fewest_words"]:
            share = sum(_UNSAYABLE.fullmatch(word) is not None for word in words) / len(words)
            if share > thresholds["unsayable"]:
                found.append((share, turn, "words that nobody can say"))
                continue
        if not text.isascii():
            pairs = [pair for word in _WITH_LETTERS_OF_SCRIPTS.findall(text) for pair in pairwise(map(_script, word))]
            share = sum(a != b for a, b in pairs) / len(pairs) if len(pairs) >= 8 else 0.0
            if share > thresholds["switches"]:
                found.append((share, turn, "words of mixed scripts"))
    return max(found, key=lambda nonsense: nonsense[0], default=None)


def _script(letter: str) -> str:
    if letter.isascii():
        return "LATIN"
    script = unicodedata.name(letter, "").partition(" ")[0]
    return "CJK" if script in {"HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"} else script
