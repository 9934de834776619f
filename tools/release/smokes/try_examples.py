"""What the examples of the repository import is there; the examples themselves are not installed."""

from __future__ import annotations

import aiosqlite
import ebooklib
import httpx
import numpy
import openai
import psycopg
import pypdf
import selectolax
import semantic_text_splitter
import wordllama

assert all((aiosqlite, ebooklib, httpx, numpy, openai, psycopg, pypdf, selectolax, semantic_text_splitter, wordllama))
print("examples: works")
