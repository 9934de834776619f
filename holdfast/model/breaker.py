"""A circuit breaker, as a value. It opens after failures in a row, or a large share of failures: then nothing more starts.
After a while one attempt probes, and closes it if it succeeds. Only attempts that began after the last change count."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: The defaults: it opens after this many failures in a row, or this share of at least so many results.
FAILURES = 5
SHARE = 0.5
MINIMUM = 20
PROBE_AFTER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class BreakerSpec:
    failures: int = FAILURES
    share: float = SHARE
    minimum: int = MINIMUM
    probe_after_seconds: float = PROBE_AFTER_SECONDS


@dataclass(frozen=True, slots=True)
class Breaker:
    """Its state. `open_until` is None while it is closed."""

    failures: int = 0
    sample: int = 0
    failed: int = 0
    open_until: int | None = None
    #: The lease of the probing attempt.
    probe: int | None = None
    #: Older leases do not count.
    votes_from: int = 0

    @property
    def is_open(self) -> bool:
        return self.open_until is not None

    def may_probe(self, now: int, probe_stands: bool) -> bool:
        """Whether one attempt may probe while it is open. A probe whose lease was lost does not count."""
        return self.open_until is not None and now >= self.open_until and not probe_stands

    def probed_by(self, lease: int) -> Breaker:
        return replace(self, probe=lease)

    def after(self, spec: BreakerSpec, lease: int, worked: bool, now: int, newest_lease: int) -> Breaker:
        """The breaker after the attempt under this lease succeeded or failed."""
        if self.is_open:
            if lease != self.probe:
                return self
            if worked:
                return Breaker(votes_from=lease)
            return self._opened(spec, now, newest_lease)
        if lease < self.votes_from:
            return self
        counted = replace(
            self,
            failures=0 if worked else self.failures + 1,
            sample=self.sample + 1,
            failed=self.failed + (not worked),
        )
        if counted.failures >= spec.failures or (
            counted.sample >= spec.minimum and counted.failed >= spec.share * counted.sample
        ):
            return counted._opened(spec, now, newest_lease)
        if counted.sample >= 4 * spec.minimum:
            # Older results lose weight.
            return replace(counted, sample=counted.sample // 2, failed=counted.failed // 2)
        return counted

    def _opened(self, spec: BreakerSpec, now: int, newest_lease: int) -> Breaker:
        return replace(
            self, open_until=now + round(spec.probe_after_seconds * 1e6), probe=None, votes_from=newest_lease + 1
        )
