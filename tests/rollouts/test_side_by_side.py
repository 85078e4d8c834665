"""What two plays of one task have not in common is marked in both."""

from backend.rollouts.transcripts import mark_differences
from backend.web.transcripts import Entry, transcript_of


def said(*replies: str) -> list[Entry]:
    messages = [{"role": "system", "content": "Play."}]
    for reply in replies:
        messages += [{"role": "user", "content": "Board?"}, {"role": "assistant", "content": reply}]
    return transcript_of(messages, [], [])


def marked(entries: list[Entry]) -> list[str]:
    return [piece.text for entry in entries for piece in entry.pieces if piece.is_marked]


def whole(entries: list[Entry]) -> list[str]:
    return ["".join(piece.text for piece in entry.pieces) for entry in entries]


def test_only_other_words_are_marked() -> None:
    before, after = said("I play 4.", "Then I win here"), said("I play 4.", "Then I lose here")
    one, other, parting = mark_differences(before, after)
    assert (marked(one), marked(other), parting) == ([" win"], [" lose"], 1)
    assert (whole(one), whole(other)) == (whole(before), whole(after))


def test_the_same_replies_have_no_mark() -> None:
    one, other, parting = mark_differences(said("a", "b"), said("a", "b"))
    assert (marked(one), marked(other), parting) == ([], [], None)


def test_a_longer_play_parts_where_the_other_ends() -> None:
    assert mark_differences(said("a"), said("a", "b"))[2] == 1


def test_spaces_and_empty_replies_are_kept() -> None:
    before, after = said("  a \n\n b ", ""), said("", "c  ")
    one, other, _ = mark_differences(before, after)
    assert (whole(one), whole(other)) == (whole(before), whole(after))


def test_a_very_long_reply_is_marked_whole() -> None:
    text = "word " * 5000
    one, _, _ = mark_differences(said(text), said("short"))
    assert marked(one) == [text]
