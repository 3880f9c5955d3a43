"""Whether our own kernels can be used here: they need Triton, and Triton needs a C compiler to launch them."""

from __future__ import annotations

import os
import shutil

try:
    import triton.language  # noqa: F401 (a mere folder named triton has no `language`)

    _found = True
except ImportError:
    _found = False

AVAILABLE = _found and any(map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "clang"))))
