"""Network access: granted by administrators to a package's content, within the operator's setting."""

from dataclasses import dataclass

NOBODY = "none"


@dataclass(frozen=True, slots=True)
class NetworkRule:
    """The operator's setting `PROCTOR_ALLOW_NETWORK`."""

    is_closed: bool = False
    """No environment gets network access here, whatever administrators grant."""
    hashes: frozenset[str] = frozenset()
    """Content hashes that need no grant."""

    @staticmethod
    def read(setting: str) -> "NetworkRule":
        words = frozenset(filter(None, setting.replace(",", " ").split()))
        return NetworkRule(NOBODY in words, words - {NOBODY})

    def allows(self, content_hash: str, *, is_granted: bool) -> bool:
        return not self.is_closed and (is_granted or content_hash in self.hashes)
