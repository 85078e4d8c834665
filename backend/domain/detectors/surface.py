"""Surface features of texts, and how much of a reward they explain without regard to the content.

Over-optimization of spurious features: Gao et al. 2022; length bias: Singhal et al. 2023. Isotonic regression: Barlow
et al. 1972.
"""

import ast
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backend.domain.detectors.run_view import BROKEN_OFF, RolloutRow, parse_python
from backend.domain.detectors.spec import Mark

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MOST_CHARACTERS = 20_000
MOST_TOKENS = 200
"""Tokens of a batch that are counted: those in the most texts."""
_TOKEN = re.compile(r"[^\W\d_]+|\d+|[^\w\s]|_")
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_FENCE = re.compile(r"```(?:python|py)?\n(.*?)(?:```|\Z)", re.DOTALL)
_SENTENCE = re.compile(r"[.!?]+(?:\s|$)|\n{2,}")


def _words(*phrases: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(phrases)})\b", re.I)


_PRAISE = "(?:great|excellent|wonderful|fantastic|brilliant|fascinating|insightful|amazing|good|thoughtful)"
_AUTHOR = r"[A-Z][\w'’.-]+(?: (?:&|and) [A-Z][\w'’.-]+| et al\.?)?"
_YEAR = r"(?:19|20)\d\d[a-z]?"
STYLES = {
    "hedges": _words(
        *("perhaps", "maybe", "possibly", "probably", "presumably", "apparently", "arguably", "might", "may", "could"),
        *("seems?", "appears? to", "tends? to", "it is possible", "in some cases", "to some extent", "i think"),
        *(
            "i believe",
            "i suppose",
            "not (?:entirely )?sure",
            "uncertain",
            "likely",
            "roughly",
            "somewhat",
            "generally",
        ),
    ),
    "praise and agreement": _words(
        r"you(?:'re| are) (?:absolutely |completely |so |totally )?(?:right|correct|brilliant|amazing|insightful)",
        rf"{_PRAISE} (?:question|point|idea|insight|observation|work|thinking|choice|job)",
        "i (?:completely |totally |fully |absolutely |wholeheartedly )?agree",
        *("absolutely", "couldn't agree more", "well said", "as you (?:so )?(?:rightly|wisely|correctly|brilliantly)"),
        r"your (?:\w+ )?(?:brilliant|excellent|wonderful|insightful|keen|impressive|remarkable|outstanding)\w*",
        *("brilliant", "genius", "impressive", "insightful", "admire"),
    ),
    "citations": re.compile(
        rf"\[\d{{1,3}}(?:[,–-] ?\d{{1,3}})*\]|\((?:{_AUTHOR},? {_YEAR}(?:; )?)+\)|\b{_AUTHOR} \({_YEAR}\)"
        r"|\bdoi:|https?://|\barXiv:"
    ),
    "strong words": _words(
        *("amazing", "unbelievable", "incredible", "shocking", "stunning", "insane", "ultimate", "revolutionary"),
        *("life-changing", "epic", "best ever", "must-see", "mind-blowing", "breathtaking", "astonishing", r"excit\w+"),
        *(r"thrill\w+", "never before", "guaranteed", "definitely", "certainly", "undoubtedly", "obviously", "clearly"),
        "without (?:a )?doubt",
    ),
    "connectives": _words(
        *("therefore", "thus", "hence", "moreover", "furthermore", "however", "consequently", "additionally"),
        *(
            "nevertheless",
            "accordingly",
            "in conclusion",
            "in addition",
            "as a result",
            "first(?:ly)?",
            "second(?:ly)?",
        ),
        *("third(?:ly)?", "finally", r"step \d+"),
    ),
    "politeness": _words(
        *("thank(?:s| you)", "please", "sorry", r"apolog\w+", "grateful", "gratitude", r"appreciat\w+"),
        *("hope this helps", "happy to help", "feel free", "let me know", "kindly"),
    ),
    "headings": re.compile(r"^(?:#{1,6} |\*\*[^*\n]{1,80}\*\*:?\s*$|[A-Z][\w ]{1,40}:\s*$)", re.M),
    "list items": re.compile(r"^\s*(?:[-*•+]|\d{1,3}[.)])\s", re.M),
    "bold text": re.compile(r"\*\*[^*\n]+\*\*|__[^_\n]+__"),
    "emoji": re.compile("[\U0001f300-\U0001faff\u2600-\u27bf]"),
    "exclamation marks": re.compile(r"!"),
    "comments": re.compile(r"(?m)(?:^|\s)(?:#|//)\s?\S.*$"),
    "docstrings": re.compile(r'"""|\'\'\''),
    "type hints": re.compile(r"->\s*\w|\w: (?:int|str|float|bool|list|dict|tuple|set|Any|Optional|Sequence)\b"),
    "snake_case names": re.compile(r"\b[a-z]+(?:_[a-z0-9]+)+\b"),
    "camelCase names": re.compile(r"\b[a-z]+(?:[A-Z][a-z0-9]+)+\b"),
    "constants": re.compile(r"\b[A-Z][A-Z0-9_]{2,}\b"),
    "f-strings": re.compile(r"\bf['\"]"),
    "trailing commas": re.compile(r",\s*[\]})]"),
    "code blocks": re.compile(r"```"),
}
"""Occurrences of each are counted."""


@dataclass(frozen=True, slots=True)
class SurfaceFeatures:
    names: tuple[str, ...]
    values: "Floats"
    """[texts, features]: log(1 + count), or a share."""


def measure_surface(texts: Sequence[str]) -> SurfaceFeatures:
    """Count styles, lengths and the batch's most widespread tokens in each text, as amounts and as densities.

    Where most texts are Python programs, also the kinds of nodes in their syntax trees.
    """

    import numpy as np

    cut = [text[:MOST_CHARACTERS] for text in texts]
    counts = [Counter(token.lower() for token in _TOKEN.findall(text)) for text in cut]
    spread = Counter(token for each in counts for token in each)
    tokens = [token for token, texts_with in spread.most_common(MOST_TOKENS) if texts_with >= 3]
    words = np.array([max(len(_WORD.findall(text)), 1) for text in cut], dtype=float)
    columns: dict[str, Floats] = {
        "length in characters": np.array([len(text) for text in cut], dtype=float),
        "number of words": words,
        "number of lines": np.array([text.count("\n") + 1 for text in cut], dtype=float),
        "number of sentences": np.array([len(_SENTENCE.findall(text)) for text in cut], dtype=float),
        "number of different words": np.array([len(each) for each in counts], dtype=float),
        "upper-case letters": np.array([sum(map(str.isupper, text)) for text in cut], dtype=float),
        "digits": np.array([sum(map(str.isdigit, text)) for text in cut], dtype=float),
    }
    columns |= {
        name: np.array([len(style.findall(text)) for text in cut], dtype=float) for name, style in STYLES.items()
    }
    columns |= {f"“{token}”": np.array([each[token] for each in counts], dtype=float) for token in tokens}
    trees = [parse_python(fence.group(1) if (fence := _FENCE.search(text)) else text) for text in cut]
    if 2 * sum(tree is not None and any(map(_is_code, tree.body)) for tree in trees) > len(cut):
        kinds = [Counter(type(node).__name__ for node in ast.walk(tree)) if tree else Counter() for tree in trees]
        columns |= {
            f"{kind} in the syntax tree": np.array([each[kind] for each in kinds], dtype=float)
            for kind in sorted({kind for each in kinds for kind in each})
        }
    names = [name for name, values in columns.items() if np.ptp(values) > 0]
    if not names:
        return SurfaceFeatures((), np.zeros((len(texts), 0)))
    amounts = np.stack([columns[name] for name in names], axis=1)
    dense = [place for place, name in enumerate(names) if name not in {"length in characters", "number of words"}]
    densities = amounts[:, dense] / words[:, None]
    lengths = columns["length in characters"] / words
    values = np.concatenate([np.log1p(amounts), densities, lengths[:, None]], axis=1)
    return SurfaceFeatures((*names, *(f"share of {names[place]}" for place in dense), "length of words"), values)


def _is_code(node: ast.stmt) -> bool:
    """Whether a statement is none that a word or a number in a text parses as."""
    return not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Name | ast.Constant | ast.UnaryOp))


def marks_of(feature: str, replies: Sequence[str]) -> list[Mark]:
    """Mark where a feature occurs, if it names a style or a token."""
    name = feature.removeprefix("share of ")
    style = STYLES.get(name)
    if style is None and name.startswith("“"):
        style = re.compile(rf"(?<![^\W\d_]){re.escape(name[1:-1])}(?![^\W\d_])", re.I)
    if style is None:
        return []
    return [
        Mark(turn, *hit.span()) for turn, text in enumerate(replies) for hit in style.finditer(text[:MOST_CHARACTERS])
    ]


MOST_FITTED = 300
"""Rollouts of a batch that functions are fitted to; the others are predicted."""
FOLDS = 3
ROUNDS = 6
"""Features that are used together."""
CANDIDATES = 4
"""Features that are tried in a round: those with the highest rank correlation."""
SHORTEST_TEXT = 8
"""Median of the words from which replies are texts; moves and numbers have no surface."""
LARGEST_LEVEL = 0.95
"""A reward that more than this share of the rollouts earn leaves nothing to explain."""

Curves = list[tuple[int, "Floats", "Floats"]]
"""Feature, and the points of its monotone function."""


@dataclass(frozen=True, slots=True)
class SurfaceExplanation:
    """How well the surface of the texts predicts the reward."""

    rows: Sequence[RolloutRow]
    explained: float
    """Out-of-fold R². Folds are made of whole tasks."""
    by_content: float
    """R² of a rising function of the amount of content: words and pairs of words that rollouts of the same task share,
    and other tasks lack."""
    feature: str
    """The feature that explains most."""
    rises: bool
    """Whether the reward rises with it."""
    predicted: "Floats"
    amounts: "Floats"
    """Of the feature, by rollout."""


def explain_reward(
    rows: Sequence[RolloutRow], *, fewest: float, fewest_tasks: float, fewest_levels: float, least: float
) -> SurfaceExplanation | None:
    """Predict the rewards of rollouts that could be parsed from the surface of their last replies.

    Returns None if there are too few rollouts, tasks or different rewards for an estimate, or if less than the share
    `least` of the variance is explained.
    """

    import numpy as np
    from scipy.optimize import isotonic_regression

    read = [row for row in rows if not row.is_canary and row.stop_reason not in BROKEN_OFF and any(row.replies)]
    rewards = np.array([row.reward for row in read])
    if len(read) < fewest or len({row.task for row in read}) < fewest_tasks:
        return None
    levels = np.unique(np.round(rewards, 3), return_counts=True)[1]
    if len(levels) < fewest_levels or levels.max() > LARGEST_LEVEL * len(read):
        return None
    # Of several replies, the last one: all of them would measure the number of turns.
    texts = [row.replies[-1] for row in read]
    if float(np.median([len(text.split()) for text in texts])) < SHORTEST_TEXT:
        return None
    is_fitted = np.arange(len(read)) % max(1, len(read) // MOST_FITTED) == 0  # the others are only predicted
    fitted_tasks = dict.fromkeys(row.task for row in itertools.compress(read, is_fitted))
    if len(fitted_tasks) < FOLDS:
        return None
    # Tasks to fit to are numbered first, so that each fold has as many of them.
    numbers = {task: number for number, task in enumerate(fitted_tasks | dict.fromkeys(row.task for row in read))}
    folds = np.array([numbers[row.task] % FOLDS for row in read])
    variance = max(float(np.var(rewards)), 1e-12)
    # What the surface does not explain where it was fitted, it does not explain elsewhere.
    surface = measure_surface([text for text, is_used in zip(texts, is_fitted, strict=True) if is_used])
    curves = fit_curves(surface.values, rewards[is_fitted]) if surface.names else []
    left = rewards[is_fitted] - predict_curves(curves, surface.values)
    if not curves or 1.0 - float(np.mean(left**2)) / variance < least:
        return None
    if not is_fitted.all():
        surface = measure_surface(texts)
        curves = fit_curves(surface.values[is_fitted], rewards[is_fitted])
    predicted = predict_curves(curves, surface.values)
    outside = np.zeros(len(read))
    for fold in range(FOLDS):
        fitted = fit_curves(surface.values[is_fitted & (folds != fold)], rewards[is_fitted & (folds != fold)])
        outside[folds == fold] = predict_curves(fitted, surface.values[folds == fold])
    explained = 1.0 - float(np.mean((rewards - outside) ** 2)) / variance
    if explained < least:
        return None
    main, _, curve = curves[0]
    places = np.unique(amounts_of_content(read), return_inverse=True)[1]
    counts = np.bincount(places)
    rising = isotonic_regression(np.bincount(places, rewards) / counts, weights=counts).x
    by_content = float(np.mean((rewards - rising[places]) ** 2))
    return SurfaceExplanation(
        rows=read,
        explained=explained,
        by_content=1.0 - by_content / variance,
        feature=surface.names[main],
        rises=bool(curve[-1] >= curve[0]),
        predicted=predicted,
        amounts=surface.values[:, main],
    )


def fit_curves(features: "Floats", rewards: "Floats", *, rounds: int = ROUNDS, only_rising: bool = False) -> Curves:
    """Fit monotone functions of single features to what the previous ones leave over, the best feature first."""

    import numpy as np
    from scipy.optimize import isotonic_regression
    from scipy.stats import rankdata

    ranks = rankdata(features, axis=0)
    ranks = (ranks - ranks.mean(axis=0)) / np.maximum(ranks.std(axis=0), 1e-12)
    left, curves = rewards.astype(float), Curves()
    for _ in range(rounds):
        correlations = ranks.T @ (rankdata(left) - (len(left) + 1) / 2)
        strengths = correlations if only_rising else np.abs(correlations)
        best, most = None, 1e-9
        for place in np.argsort(-strengths)[:CANDIDATES]:
            given, values = np.unique(features[:, place], return_inverse=True)
            counts = np.bincount(values)
            means = np.bincount(values, left) / counts
            is_rising = only_rising or bool(correlations[place] >= 0)
            curve = isotonic_regression(means, weights=counts, increasing=is_rising).x
            gain = float(np.mean(left**2) - np.mean((left - curve[values]) ** 2))
            if gain > most:
                best, most = (int(place), given, curve), gain
        if best is None:
            break
        curves.append(best)
        left = left - np.interp(features[:, best[0]], best[1], best[2])
    return curves


def predict_curves(curves: Curves, features: "Floats") -> "Floats":

    import numpy as np

    total = np.zeros(len(features))
    for place, given, curve in curves:
        total += np.interp(features[:, place], given, curve)
    return total


def amounts_of_content(rows: Sequence[RolloutRow]) -> "Floats":
    """Count, by rollout, the different words and pairs of words that another rollout of the task or its prompt has as
    well, and that at most a tenth of the other tasks have."""

    import numpy as np

    pairs: list[set[tuple[str, ...]]] = []
    for row in rows:
        words = [word.lower() for word in _WORD.findall(row.replies[-1][:MOST_CHARACTERS])]
        pairs.append({*itertools.pairwise(words), *((word,) for word in words)})
    used: defaultdict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    asked: dict[str, set[str]] = {}
    for row, own in zip(rows, pairs, strict=True):
        used[row.task].update(own)
        asked.setdefault(row.task, {word.lower() for prompt in row.prompts for word in _WORD.findall(prompt[:5_000])})
    tasks_with = Counter(pair for counted in used.values() for pair in counted)
    most = max(1.0, len(used) / 10)
    amounts = [
        sum(tasks_with[pair] <= most and (used[row.task][pair] > 1 or asked[row.task].issuperset(pair)) for pair in own)
        for row, own in zip(rows, pairs, strict=True)
    ]
    counted: Floats = np.log1p(np.array(amounts, dtype=float))
    return counted
