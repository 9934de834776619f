"""Answers: what the questions of `Holdfast` return, as immutable objects that print themselves.

One class per kind of answer. They are msgspec structs rather than dataclasses: so many dataclasses would delay the start of
every command by 40 ms. `reading.py` is the only place that reads what the engine counts in microseconds and millionths;
`json_of.py` makes the JSON, whose rules (seconds in names, amounts as text) msgspec's own encoder does not have.
"""

from holdfast.answers.action import ActedOn as ActedOn
from holdfast.answers.action import ActionDetails as ActionDetails
from holdfast.answers.action import ActionList as ActionList
from holdfast.answers.action import ActionPreview as ActionPreview
from holdfast.answers.action import ActionRecord as ActionRecord
from holdfast.answers.answer import Answer as Answer
from holdfast.answers.answer import Answers as Answers
from holdfast.answers.cost import Costs as Costs
from holdfast.answers.cost import CostSum as CostSum
from holdfast.answers.diagnosis import Diagnosis as Diagnosis
from holdfast.answers.error_group import ErrorGroup as ErrorGroup
from holdfast.answers.error_group import ErrorGroups as ErrorGroups
from holdfast.answers.event import EventCount as EventCount
from holdfast.answers.event import EventCounts as EventCounts
from holdfast.answers.event import Events as Events
from holdfast.answers.event import LoggedEvent as LoggedEvent
from holdfast.answers.item import History as History
from holdfast.answers.item import HistoryEntry as HistoryEntry
from holdfast.answers.item import ItemDetails as ItemDetails
from holdfast.answers.item import Items as Items
from holdfast.answers.item import ListedItem as ListedItem
from holdfast.answers.item import StageOfItem as StageOfItem
from holdfast.answers.json_of import json_of as json_of
from holdfast.answers.limit import ResourceLimit as ResourceLimit
from holdfast.answers.limit import ResourceLimits as ResourceLimits
from holdfast.answers.paid_call import Ledger as Ledger
from holdfast.answers.paid_call import LedgerEntry as LedgerEntry
from holdfast.answers.paid_call import MemoRecord as MemoRecord
from holdfast.answers.paid_call import Memos as Memos
from holdfast.answers.plan import Effort as Effort
from holdfast.answers.plan import OutdatedWorker as OutdatedWorker
from holdfast.answers.plan import Plan as Plan
from holdfast.answers.plan import StagePlan as StagePlan
from holdfast.answers.source import SourceList as SourceList
from holdfast.answers.source import SourceStatus as SourceStatus
from holdfast.answers.status import HoldReason as HoldReason
from holdfast.answers.status import Obstacle as Obstacle
from holdfast.answers.status import PipelineStatus as PipelineStatus
from holdfast.answers.status import RemovedStage as RemovedStage
from holdfast.answers.status import StageStatus as StageStatus
from holdfast.answers.status import Status as Status
from holdfast.answers.status import Timings as Timings
from holdfast.answers.summary import FrequentError as FrequentError
from holdfast.answers.summary import Summary as Summary
from holdfast.answers.why import Explanation as Explanation
from holdfast.answers.worker import GuardHold as GuardHold
from holdfast.answers.worker import ProgressNote as ProgressNote
from holdfast.answers.worker import Workers as Workers
from holdfast.answers.worker import WorkerStatus as WorkerStatus
from holdfast.model.pipeline_changes import Changes as Changes
from holdfast.model.pipeline_changes import Moved as Moved
from holdfast.model.pipeline_changes import NewWork as NewWork
from holdfast.model.pipeline_changes import Removed as Removed
from holdfast.model.pipeline_changes import Renamed as Renamed
from holdfast.model.pipeline_changes import Rewired as Rewired
