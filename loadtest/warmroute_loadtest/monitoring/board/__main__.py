"""`python -m warmroute_loadtest.monitoring.board`"""

from . import FILE, text

FILE.write_text(text(), encoding="utf-8")
