"""What the code does not say about its names, in a sentence each. A name that has none here keeps the page from being made."""

from __future__ import annotations

EXIT_CODES = {
    0: "success; for `worker`, and `loop` without `--drain`: it was asked to stop, and did",
    1: "an unexpected error, too many hanging handlers, a difference for `crashtest`, findings of `doctor --exit-code`",
    2: "wrong usage: an unknown option, an unknown item, an empty key",
    3: "something failed: items of `run`, rows of `loop --drain`, a source of `discover`, results of `export --fail-if-failed`",
    4: "an invalid pipeline or job file: it does not import, has a cycle, or names a handler that cannot be called",
    5: "the database: it cannot be reached or used, or `db check` or `doctor` found it damaged or in disorder",
    6: "`loop --drain`: it has ended, and [rows are left](../guide/own-tables.md#draining)",
    7: "`run --one-at-a-time`: another such run is at work; nothing was done",
    130: "interrupted by Ctrl-C; run the same command again to continue",
    141: "nobody reads the output any more, as with `holdfast events | head`",
    143: "ended by SIGTERM; run the same command again to continue",
}

#: By the kind of event: what it says, and what it has besides pipeline, item and stage.
EVENTS = {
    "accepted": "A person accepted a stale result as it is.",
    "action_stopped": "A person stopped an action on many items; what it has done stays done.",
    "alert_given_up": "A notification of an alert failed as often as it is tried.",
    "alert_told": "A notification of an alert was delivered.",
    "answer_rejected": "A recorded answer was rejected, by `validate` or by a person: the next attempt calls again.",
    "answer_restored": "A person took back the rejection of an answer.",
    "attempt_failed": "An attempt raised, timed out or lost its process, and there is another one.",
    "breaker_closed": "A probe succeeded: the resource may be used again.",
    "breaker_opened": "A resource is not used for a while, because of too many failures.",
    "budget_reached": "Work waits, because its estimate does not fit the budget of a resource.",
    "cancelled": "A person cancelled the stage.",
    "children_ended": "All children of the item have ended, and the stage that waited for them begins.",
    "clock_set": "The clock of the machine was set; due times were moved with it.",
    "completed": "The stage is done. Only recorded if the attempt was not routine.",
    "cooled_down": "The provider asked for a pause: no worker uses the resource until it is over.",
    "declared": "A program or a job file has declared other limits or guards than before.",
    "deleted": "A person deleted items permanently.",
    "discovered": "A look at a source ended; how many items it found, new and changed.",
    "discovery_failed": "A look at a source failed; when the next is due.",
    "exhausted": "The last attempt failed.",
    "failed": "The handler raised `Permanent`, or its result cannot be stored.",
    "handed_back": "A worker gave the work back, as when it stops; the attempt is refunded.",
    "held": "The stage waits for a person, a price or a version of its code.",
    "import_problem": "A row of an old database could not be read as it was.",
    "in_doubt": "An attempt found a paid call that was started and has no recorded answer; what the policy decided.",
    "job_file_broken": "A job file was saved that is invalid; the worker keeps the old one.",
    "job_file_wants_restart": "A job file was saved with changes that need a restart of the worker.",
    "lease_expired": "The worker of an attempt died; the work is pending again.",
    "lease_lost": "A late worker tried to finish work that it no longer held; nothing was saved.",
    "legacy_event": "An event of the log of an old database, as it was there.",
    "legacy_imported": "An import from an old database ended; what it brought.",
    "look_requested": "A person asked for a source to be looked at now.",
    "money_in_doubt": "An attempt ended during a paid call: it may have been charged, and counts with its estimate.",
    "paused": "A pipeline, a stage or a resource was paused, by a person or because credit ran out.",
    "pipeline_registered": "The definition of a pipeline changed: stages added, changed, removed, renamed, on hold.",
    "pruned": "Items that ended long ago were deleted.",
    "reopened": "The stage runs again, because a stage before it produced a different result.",
    "reprocessed": "A person let a stale stage run again.",
    "rerun_refused": "A follow-on item would have been run again because of itself.",
    "resolved": "A person settled a paid call in doubt.",
    "resumed": "A pause ended, by a person or because its time was over.",
    "retried": "A person let the stage run again.",
    "row_set_aside": "`db check --repair` set aside a row that belongs to nothing.",
    "skipped": "The handler returned `Skip`. Only recorded if the attempt was not routine.",
    "snoozed": "The handler returned `RetryLater`, or a limit of the provider was reached; no attempt is spent.",
    "stage_renamed": "A stage has a new name, and keeps its results and its history.",
    "submitted_again": "A follow-on item asked for the stage to run again.",
    "sums_repaired": "`db check --repair` rebuilt a sum of money from the ledger.",
    "superseded": "A stage before it produced a different result while it ran; its work was taken back.",
    "tuned": "A person changed limits or guards.",
    "unknown_resource": "`ctx.cost` named a resource that does not exist; where it was counted.",
    "worker_died": "A worker stopped sending heartbeats, or its process is gone.",
    "worker_started": "A worker began.",
    "worker_stopped": "A worker ended as it was asked to.",
}

#: By the variable: its meaning, and its default.
SETTINGS = {
    "HOLDFAST_ALLOW_SHARED_FILE_SYSTEM": (
        "Any value allows a SQLite file on a network file system, where SQLite may lose data.",
        "refused",
    ),
    "HOLDFAST_BLOBS": (
        "Where `ctx.keep` puts [content](../guide/large-results.md): a folder, or an address like `s3://bucket/folder`.",
        "the folder beside a SQLite file",
    ),
    "HOLDFAST_CRASH_AT": (
        "For tests: the point at which `run` and `worker` end their process ([crash tests](../guide/crash-tests.md)).",
        "none",
    ),
    "HOLDFAST_FILE_MODE": (
        "The mode of a new SQLite database, in octal ([security](../guide/security.md#files)).",
        "`0600`",
    ),
    "HOLDFAST_TEST_POSTGRES": (
        "For the [pytest fixtures](../guide/crash-tests.md#in-your-tests): the address of a PostgreSQL server.",
        "one that is started for the run",
    ),
    "HOLDFAST_UI_TOKEN": ("The token of [the dashboard](../guide/dashboard.md).", "a new one at each start"),
    "HOLDFAST_URL": ("The store, unless `--store` or the program names one.", "`sqlite:///holdfast.db`"),
    "HOLDFAST_YES": (
        "`1`: a changed pipeline may run its new work whatever it costs, and `delete` and `prune` do not ask.",
        "new work with a price is on hold; commands ask",
    ),
    "OTEL_PYTHON_TRACER_PROVIDER": (
        "A tracer provider that OpenTelemetry loads by this name; with it, holdfast [traces](../guide/tracing.md).",
        "none",
    ),
}
#: Between processes of holdfast: not for users.
INTERNAL_SETTINGS = frozenset({"HOLDFAST_CRASHTEST_RECORD", "HOLDFAST_SUPERVISED_STORE"})
