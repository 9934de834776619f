"""Results in a user's hands: as values, as data frames, and as files."""

from holdfast.export.result import Result as Result
from holdfast.export.results import Results as Results
