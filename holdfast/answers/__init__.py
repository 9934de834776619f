"""Answers: what the questions of `Holdfast` return, as immutable objects that print themselves.

One class per kind of answer. They are msgspec structs rather than dataclasses: so many dataclasses would delay the start of
every command by 40 ms. `reading.py` is the only place that reads what the engine counts in microseconds and millionths;
`json_of.py` makes the JSON, whose rules (seconds in names, amounts as text) msgspec's own encoder does not have.
"""

from holdfast.answers.action import ActedOn, ActionDetails, ActionList, ActionPreview, ActionRecord, LeftAlone
from holdfast.answers.alert import AlertDelivery, AlertRuleStatus, AlertStatus
from holdfast.answers.answer import Answer, Answers
from holdfast.answers.audit import AuditEntry, AuditPage
from holdfast.answers.blocker import Blocker
from holdfast.answers.cost import Costs, CostSum
from holdfast.answers.diagnosis import Diagnosis
from holdfast.answers.error_group import ErrorGroup, ErrorGroups
from holdfast.answers.event import EventCount, EventCounts, EventPage, Events, LoggedEvent
from holdfast.answers.item import (
    History,
    HistoryEntry,
    ItemDetails,
    Items,
    ListedItem,
    PreviousResult,
    StageLease,
    StageOfItem,
)
from holdfast.answers.json_of import json_of
from holdfast.answers.limit import ResourceLimit, ResourceLimits
from holdfast.answers.matrix import Matrix, MatrixCell, MatrixStretch
from holdfast.answers.paid_call import Ledger, LedgerEntry, MemoRecord, Memos
from holdfast.answers.plan import Effort, OutdatedWorker, Plan, StagePlan
from holdfast.answers.run_summary import FrequentError, Summary
from holdfast.answers.source import SourceList, Sources, SourceStatus
from holdfast.answers.status import HoldReason, Obstacle, PipelineStatus, RemovedStage, StageStatus, Status, Timings
from holdfast.answers.throughput import StageThroughput, Throughput, ThroughputPoint
from holdfast.answers.why import Explanation
from holdfast.answers.worker import GuardHold, ProgressNote, WorkerError, Workers, WorkerStatus
from holdfast.model.definition_changes import Changes, Moved, NewWork, Removed, Renamed, Rewired

__all__ = [
    "ActedOn",
    "ActionDetails",
    "ActionList",
    "ActionPreview",
    "ActionRecord",
    "AlertDelivery",
    "AlertRuleStatus",
    "AlertStatus",
    "Answer",
    "Answers",
    "AuditEntry",
    "AuditPage",
    "Blocker",
    "Changes",
    "CostSum",
    "Costs",
    "Diagnosis",
    "Effort",
    "ErrorGroup",
    "ErrorGroups",
    "EventCount",
    "EventCounts",
    "EventPage",
    "Events",
    "Explanation",
    "FrequentError",
    "GuardHold",
    "History",
    "HistoryEntry",
    "HoldReason",
    "ItemDetails",
    "Items",
    "Ledger",
    "LedgerEntry",
    "LeftAlone",
    "ListedItem",
    "LoggedEvent",
    "Matrix",
    "MatrixCell",
    "MatrixStretch",
    "MemoRecord",
    "Memos",
    "Moved",
    "NewWork",
    "Obstacle",
    "OutdatedWorker",
    "PipelineStatus",
    "Plan",
    "PreviousResult",
    "ProgressNote",
    "Removed",
    "RemovedStage",
    "Renamed",
    "ResourceLimit",
    "ResourceLimits",
    "Rewired",
    "SourceList",
    "SourceStatus",
    "Sources",
    "StageLease",
    "StageOfItem",
    "StagePlan",
    "StageStatus",
    "StageThroughput",
    "Status",
    "Summary",
    "Throughput",
    "ThroughputPoint",
    "Timings",
    "WorkerError",
    "WorkerStatus",
    "Workers",
    "json_of",
]
