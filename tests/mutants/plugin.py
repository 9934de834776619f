"""`pytest -p tests.mutants.plugin` runs tests with the bug that HOLDFAST_MUTANT names."""

from tests.mutants.bugs import from_environment

from_environment()
