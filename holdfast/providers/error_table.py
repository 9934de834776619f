"""The table of verdicts: by which sign an error reply is recognised, and what it means. The first row that fits counts.

A new provider is a few rows. What holds for every provider (statuses) stands last.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple

from holdfast.errors import BadRequest, ContentFiltered, InDoubt, InputTooLong, NotSent
from holdfast.model.outcome import CredentialRefused, OutOfCredit, Overloaded, RateLimited
from holdfast.providers.error_reply import Reply
from holdfast.providers.was_it_sent import GAVE_UP

Verdict = (
    RateLimited
    | Overloaded
    | OutOfCredit
    | CredentialRefused
    | InputTooLong
    | ContentFiltered
    | BadRequest
    | NotSent
    | InDoubt
)


class Sign(NamedTuple):
    """Every condition that is given has to hold; of several names, codes, texts or statuses, one."""

    means: type[Verdict]
    #: Names of classes, if the error is one of a provider's package.
    names: tuple[str, ...] = ()
    #: The provider's own codes, in lower case; `*` stands for anything.
    codes: tuple[str, ...] = ()
    #: Parts of the provider's words, in lower case.
    texts: tuple[str, ...] = ()
    #: Without any, every error status, or none if there are names.
    statuses: frozenset[int] = frozenset()
    #: Only for errors of a provider's package, or of this one.
    package: bool | str = False

    def fits(self, reply: Reply) -> bool:
        if self.package and not (reply.library if self.package is True else reply.library == self.package):
            return False
        if self.names and not (reply.library and not reply.names.isdisjoint(self.names)):
            return False
        if self.statuses and reply.status not in self.statuses:
            return False
        if not (self.names or self.statuses) and (reply.status is None or reply.status < 400):
            return False
        if self.codes and not any(fnmatchcase(code, one) for code in reply.codes for one in self.codes):
            return False
        words = reply.words.lower()
        return not self.texts or any(text in words for text in self.texts)


def _of(*statuses: int) -> frozenset[int]:
    return frozenset(statuses)


REFUSED = _of(400, 401, 402, 403, 404, 413, 422, 429)
SIGNS = [
    # Classes of errors -------------------------------------------------------------------------------------------------
    Sign(OutOfCredit, names=("PaymentRequiredError", "BudgetExceededError")),
    Sign(InputTooLong, names=("ContextWindowExceededError",)),
    Sign(ContentFiltered, names=("ContentFilterFinishReasonError", "ContentPolicyViolationError")),
    Sign(ContentFiltered, names=("GuardrailRaisedException", "BlockedPiiEntityError")),
    # An answer was generated, and is not usable or not whole.
    Sign(InDoubt, names=("LengthFinishReasonError", "MidStreamFallbackError", "ContinuationInterruptedError")),
    Sign(InDoubt, names=("APIResponseValidationError", "ResponseValidationError", "UnknownApiResponseError")),
    Sign(InDoubt, names=("JSONDecodeError",), package="litellm"),
    Sign(InDoubt, names=("EventStreamError",), package="botocore"),
    # Checked by the client: nothing was sent.
    Sign(CredentialRefused, names=("CredentialsError", "NoCredentialsError", "PartialCredentialsError")),
    Sign(BadRequest, names=("ParamValidationError",), package="botocore"),
    # A gateway gave up, whatever it says.
    Sign(InDoubt, statuses=GAVE_UP),
    # Codes -------------------------------------------------------------------------------------------------------------
    Sign(
        OutOfCredit,
        codes=(
            "insufficient_quota",
            "billing_hard_limit_reached",
            "billing_not_active",
            "billing_error",
            "credit_balance_exhausted",
            "*_spend_limit_exceeded",
            "*_spend_limit_reached",
            "insufficient_balance",
            "insufficient_credits",
            "exceeded_current_quota_error",
            "budget_exceeded",
            "budget",
        ),
    ),
    Sign(InputTooLong, statuses=_of(413)),
    Sign(
        InputTooLong,
        codes=(
            "context_length_exceeded",
            "string_above_max_length",
            "request_too_large",
            "request_body_too_large_after_decoding",
        ),
    ),
    Sign(
        ContentFiltered,
        codes=(
            "content_filter",
            "content_policy_violation",
            "image_content_policy_violation",
            "moderation_blocked",
            "responsibleaipolicyviolation",
        ),
    ),
    # Gemini says so of a file that has expired, or that another key has uploaded.
    Sign(BadRequest, statuses=_of(403, 404), texts=("permission to access the file",), package=True),
    Sign(
        CredentialRefused,
        statuses=_of(400, 401, 403),
        codes=(
            "authentication_error",
            "permission_error",
            "invalid_api_key",
            "incorrect_api_key",
            "api_key_invalid",
            "permission_denied",
            "unauthenticated",
            "accessdeniedexception",
            "unrecognizedclientexception",
            "expiredtokenexception",
        ),
    ),
    Sign(Overloaded, codes=("overloaded_error", "server_is_overloaded", "slow_down", "modelnotreadyexception")),
    # Words -------------------------------------------------------------------------------------------------------------
    Sign(
        OutOfCredit,
        statuses=REFUSED,
        texts=(
            "credit balance is too low",
            "billing hard limit",
            "spending cap",
            "spend limit",
            "prepayment credits are depleted",
            "reached your specified api usage limits",
            "insufficient balance",
            "insufficient credits",
            "budget has been exceeded",
        ),
    ),
    # litellm drops the code `insufficient_quota`. Gemini uses the same words for a limit per minute or day.
    Sign(
        OutOfCredit, statuses=_of(429), texts=("openaiexception - you exceeded your current quota",), package="litellm"
    ),
    Sign(
        InputTooLong,
        statuses=_of(400, 422),
        texts=(
            "maximum context length",
            "context window",
            "exceed context limit",
            "model's context length",
            "maximum model length",
            "prompt is too long",
            "input is too long",
            "too many input tokens",
            "too many tokens",
            "exceeds the maximum number of tokens",
            "maximum input length",
            "payload size exceeds the limit",
            "reduce the length of the messages",
        ),
    ),
    # More in one request than the limit per minute: it would never pass.
    Sign(InputTooLong, statuses=_of(400, 429), texts=("request too large",)),
    Sign(
        ContentFiltered,
        statuses=_of(400, 403, 422),
        texts=(
            "content filter",
            "content management policy",
            "content policy",
            "safety system",
            "usage policy",
            "input was flagged",
        ),
    ),
    Sign(CredentialRefused, statuses=_of(400), texts=("api key not valid", "api key expired")),
    # More codes: they come with statuses that would say something else --------------------------------------------------
    Sign(RateLimited, codes=("throttlingexception", "toomanyrequestsexception", "servicequotaexceededexception")),
    # Statuses ----------------------------------------------------------------------------------------------------------
    Sign(RateLimited, statuses=_of(429)),
    Sign(OutOfCredit, statuses=_of(402)),
    Sign(CredentialRefused, statuses=_of(401)),
    Sign(CredentialRefused, statuses=_of(403), package=True),
    Sign(Overloaded, statuses=_of(425)),
    Sign(BadRequest, statuses=frozenset(range(400, 500)) | {501, 505}),
    Sign(Overloaded, statuses=frozenset(range(500, 600))),
]
