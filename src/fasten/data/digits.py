"""Handwritten digits: 1,797 grey images of 8 × 8 pixels, included in scikit-learn (Alpaydin and Kaynak, 1998)."""

from __future__ import annotations

import numpy as np

from fasten.data.source import Source

# Look-alikes, modelled on CIFAR-10's map: half of the classes go to one other class, two of them to each other. A 7
# without its bar is a 1, a 3 with closed bows an 8, a 5 with a closed belly a 6; nobody can tell an open 9 from a
# closed 4.
LOOK_ALIKES = {3: (8,), 4: (9,), 5: (6,), 7: (1,), 9: (4,)}


def read_digits() -> Source:
    """Read the digits as one source without official test rows.

    >>> source = read_digits()
    >>> source.x.shape, source.x.dtype, source.num_classes
    ((1797, 8, 8, 1), dtype('uint8'), 10)
    """
    from sklearn.datasets import load_digits  # here: it takes a second, and no other data set needs it

    bunch = load_digits()
    x = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]  # (n, 8, 8, 1); originally 0 to 16
    truth = bunch.target.astype(np.int64)
    return Source("digits", x, truth, np.zeros(len(x), bool), tuple("0123456789"), flips=LOOK_ALIKES)
