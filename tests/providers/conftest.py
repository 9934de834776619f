"""Packages of providers, loaded without asking the network for anything."""

from __future__ import annotations

import os

#: litellm loads its table of models from the network otherwise.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
