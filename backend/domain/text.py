"""Text that others wrote, made storable and sendable."""


def plain_text(text: str) -> str:
    """Without NUL, which Postgres cannot store, and without halves of surrogate pairs, which UTF-8 cannot say."""
    text = text.replace("\x00", "\N{SYMBOL FOR NULL}")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
