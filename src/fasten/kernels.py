"""Whether kernels of our own can be made here: by Triton, which needs a C compiler for what launches them."""

from __future__ import annotations

import os
import shutil

try:
    import triton.language  # noqa: F401 (a mere folder of that name has none)

    _found = True
except ImportError:
    _found = False

AVAILABLE = _found and any(map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "clang"))))
