"""The airline's system: flights that sell out as time goes by, bookings, and what can be done with them.

It executes every valid call. Whether a call was allowed is up to the desk's rules, not the system.
"""

from dataclasses import dataclass, field, replace

FEE = 40
"""Euros for a change or a cancellation of a standard fare."""
MINUTES_PER_CALL = 3


@dataclass(frozen=True)
class Flight:
    """One departure."""

    code: str
    origin: str
    destination: str
    day: str
    minute: int
    """Minutes after midnight."""
    price: int
    """Euros."""
    seats: int
    sells_out_after: int | None = None
    """Calls at the desk after which the last seat is gone."""

    @property
    def departure(self) -> str:
        return f"{self.minute // 60:02d}:{self.minute % 60:02d}"

    def seats_left(self, clock: int) -> int:
        """Fewer with every call, where it sells out."""
        if self.sells_out_after is None:
            return self.seats
        return max(0, min(self.seats, self.sells_out_after - clock))


@dataclass(frozen=True)
class Booking:
    """A passenger's seat on a flight."""

    reference: str
    passenger: str
    flight: str
    fare: str
    """basic, standard or flex."""
    price: int
    status: str = "confirmed"
    """confirmed, cancelled, or cancelled by the airline."""


class NotDone(Exception):
    """The system cannot do it; the text says why."""


@dataclass
class Desk:
    """All that lasts for the whole episode."""

    flights: dict[str, Flight]
    bookings: dict[str, Booking]
    clock: int = 0
    """Calls so far."""
    changes: list[str] = field(default_factory=list)
    """References that were booked, changed or canceled, in order."""

    @property
    def time(self) -> str:
        minutes = 9 * 60 + self.clock * MINUTES_PER_CALL
        return f"{minutes // 60:02d}:{minutes % 60:02d}"

    def find(self, origin: str, destination: str, day: str) -> list[Flight]:
        """Sorted by departure, without full flights."""
        wanted = (origin.lower(), destination.lower(), day.lower())
        found = [
            flight
            for flight in self.flights.values()
            if (flight.origin.lower(), flight.destination.lower(), flight.day.lower()) == wanted
        ]
        return sorted((flight for flight in found if self.is_free(flight)), key=lambda flight: flight.minute)

    def is_free(self, flight: Flight) -> bool:
        return flight.seats_left(self.clock) > 0

    def booking(self, reference: str) -> Booking:
        found = self.bookings.get(reference.strip().upper())
        if found is None:
            raise NotDone(f"There is no booking {reference[:20]!r}.")
        return found

    def flight(self, code: str) -> Flight:
        found = self.flights.get(code.strip().upper())
        if found is None:
            raise NotDone(f"There is no flight {code[:20]!r}.")
        return found

    def book(self, flight: Flight, passenger: str) -> Booking:
        self._need_seat(flight)
        reference = f"NEW{len(self.changes) + 1:03d}"
        booking = Booking(reference, passenger, flight.code, "standard", flight.price)
        return self._keep(booking)

    def change(self, booking: Booking, flight: Flight) -> Booking:
        self._need_active(booking)
        self._need_seat(flight)
        return self._keep(replace(booking, flight=flight.code, status="confirmed"))

    def cancel(self, booking: Booking) -> Booking:
        self._need_active(booking)
        return self._keep(replace(booking, status="cancelled"))

    def _keep(self, booking: Booking) -> Booking:
        self.bookings[booking.reference] = booking
        self.changes.append(booking.reference)
        return booking

    def _need_seat(self, flight: Flight) -> None:
        if not self.is_free(flight):
            raise NotDone(f"{flight.code} has sold out.")

    def _need_active(self, booking: Booking) -> None:
        if booking.status == "cancelled":
            raise NotDone(f"{booking.reference} is cancelled already.")
