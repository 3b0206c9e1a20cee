import sys

import pytest

from serving.base.absent_packages import absent_packages
from tests.unit.fresh_python import run_python


def test_absent_package_can_be_imported_afterwards() -> None:
    run_python(
        "import sys\n"
        "from serving.base.absent_packages import absent_packages\n"
        "with absent_packages('colorsys'):\n"
        "    try:\n"
        "        import colorsys\n"
        "    except ImportError:\n"
        "        pass\n"
        "    else:\n"
        "        sys.exit('imported')\n"
        "import colorsys\n"
    )


def test_package_that_is_imported_already_stays() -> None:
    with absent_packages("pytest"):
        assert sys.modules["pytest"] is pytest
    assert sys.modules["pytest"] is pytest


def test_logs_need_no_packages_for_pictures() -> None:
    run_python(
        "import sys\n"
        "from serving.base.absent_packages import absent_packages\n"
        "from serving.commands.serve import UNUSED_PACKAGES\n"
        "with absent_packages(*UNUSED_PACKAGES):\n"
        "    import serving.server.logs\n"
        "found = {'structlog.dev', 'rich', 'pygments', 'attr', 'colorama'} & set(sys.modules)\n"
        "sys.exit(found != {'structlog.dev'} and str(found))\n"
    )
