"""The dashboard: every page is a question that the app answers, and every button an act of the app. It speaks no SQL.

`dashboard(store, access=…)` is an ASGI application to mount anywhere; `holdfast ui` serves it alone. The rooms of this folder:

- `pages/`: one file per page, each declares one `Page` (`page.py`). To add one, write `pages/NAME.py` with `page = Page(…)` and
  `templates/NAME.html`. Navigation, HTML, `.json`, `.csv` and live updates follow from the declaration.
- `filters.py`: the address is the query. What a page can be filtered by is declared, checked and shown in one place.
- `questions.py`: who asks the store, how often, and for how long at most. `live.py`: one stream per open tab.
- `walks.py`: questions that read a whole pipeline, made in the background while somebody looks.
- `verbs.py`: what people may do to many items at once, a row of a table each; `acting.py`: preview, confirm, the action.
- `values.py`: large values of an item and the content they refer to; `downloads.py` saves them; `settling.py`: calls in doubt.
- `changing.py`: what people change that is no item: pauses, limits, a look at a source.
- `access.py`, `security.py`: who may do what, and what every request and every answer must have.
- `rendering.py`: templates, and how hostile texts are shown; `json_and_csv.py`: the same answer as JSON and CSV.
"""

from holdfast.web.access import Access
from holdfast.web.dashboard import dashboard

__all__ = ["Access", "dashboard"]
