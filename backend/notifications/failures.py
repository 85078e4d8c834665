"""How a delivery goes wrong."""


class DeliveryFailed(Exception):
    """It did not arrive; the message says why. Tried again unless `is_final`."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final
