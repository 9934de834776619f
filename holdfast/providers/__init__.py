"""Model providers: what their errors mean, what their answers cost, what their headers say.

Exceptions, answers and clients are recognised by the names of their classes and by their attributes. No package of a
provider is imported here: whatever a program uses, it has imported itself.
"""

from holdfast.providers.clients import prepare
from holdfast.providers.verdicts import Verdict, verdict

__all__ = ["Verdict", "prepare", "verdict"]
