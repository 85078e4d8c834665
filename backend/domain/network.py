"""Who may have a network: what administrators granted to a content, within what the machine's operator allows."""

from dataclasses import dataclass

NOBODY = "none"


@dataclass(frozen=True, slots=True)
class NetworkRule:
    """The operator's word, `PROCTOR_ALLOW_NETWORK`."""

    is_closed: bool = False
    """No server gets a network here, whatever administrators grant."""
    hashes: frozenset[str] = frozenset()
    """Contents that need no grant."""

    @staticmethod
    def read(setting: str) -> "NetworkRule":
        words = frozenset(filter(None, setting.replace(",", " ").split()))
        return NetworkRule(NOBODY in words, words - {NOBODY})

    def allows(self, content_hash: str, *, is_granted: bool) -> bool:
        return not self.is_closed and (is_granted or content_hash in self.hashes)
