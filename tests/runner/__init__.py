"""What tests/run.py consists of."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CARGO = os.environ.get("CARGO", "cargo")
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
