"""The desktop window: mirror, keys."""

import os

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
