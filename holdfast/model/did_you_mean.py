"""What to say about an unknown name: the names that exist, and which of them may have been meant."""

from __future__ import annotations

from collections.abc import Iterable

#: What others call it.
MEANT = {
    **dict.fromkeys(("retries", "max_retries", "retry", "attempts", "max_tries", "tries"), "max_attempts"),
    **dict.fromkeys(("depends_on", "needs", "requires", "upstream", "dependencies"), "after"),
    **dict.fromkeys(("rate_limit", "rate_limiter", "limiter", "resources", "pool"), "resource"),
    **dict.fromkeys(("time_limit", "deadline", "timeout_seconds", "execution_timeout"), "timeout"),
    **dict.fromkeys(("retry_delay", "retry_backoff", "delay", "wait"), "backoff"),
    **dict.fromkeys(("batch_size", "batched", "chunk"), "batch"),
    **dict.fromkeys(("process", "subprocess", "isolated"), "isolate"),
    **dict.fromkeys(("cost", "price", "expected_cost"), "estimate"),
    "normalize": "normalise",
    "pipeline_paused": "paused",
}
#: How many names are listed, and among how many the nearest is searched: comparing takes long.
LISTED = 60
COMPARED = 200


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The one of these names that is a synonym, or the most similar; None if none is similar."""
    # Imported only here: without a misspelling nobody waits for it.
    from difflib import get_close_matches

    names = [str(one) for one in known]
    if (meant := MEANT.get(str(name))) in names:
        return meant
    found = get_close_matches(str(name)[:100], names, n=1) if len(names) <= COMPARED else []
    return found[0] if found else None


def there_are(name: object, known: Iterable[str]) -> str:
    """`there are: extract, chunk (did you mean 'extract'?)`: the end of a message about an unknown name."""
    names = [*dict.fromkeys(known)]
    near = nearest(name, names)
    more = f", … ({len(names):,} in all)" if len(names) > LISTED else ""
    return f"there are: {', '.join(names[:LISTED]) or 'none'}{more}{f' (did you mean {near!r}?)' if near else ''}"


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The nearest of these names or, if none is near, the first of them: for the end of a message."""
    names = [*known]
    if (near := nearest(name, names)) is not None:
        return f"did you mean {near!r}?"
    more = ", …" if len(names) > 20 else ""
    return f"expected one of: {', '.join(names[:20])}{more}" if names else "there is none"
