"""How a dataset will run: places, limits and stages, as plain data."""

from typing import TYPE_CHECKING

from penstock import _lazy

if TYPE_CHECKING:
    from penstock._plan._explain import Explanation as Explanation
    from penstock._plan._explain import explain as explain
else:
    __getattr__ = _lazy.from_modules(__name__, explain="penstock._plan._explain")
