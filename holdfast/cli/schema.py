"""`holdfast schema`: the JSON Schema of the job file."""

from __future__ import annotations

import click

from holdfast import jobfile
from holdfast.cli.output import print_json


@click.command(short_help="The JSON Schema of the job file, for editors.")
def schema() -> None:
    """Print the JSON Schema of the job file, for editors that complete and check YAML as it is typed.

    Save it, and begin the job file with: # yaml-language-server: $schema=holdfast.schema.json
    """
    print_json(jobfile.schema())
