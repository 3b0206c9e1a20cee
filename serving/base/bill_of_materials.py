"""The libraries that are inside the installed package, from its software bill of materials."""

import json
from importlib.metadata import PackageNotFoundError, distribution

BILL_OF_MATERIALS = "sboms/millpond.cdx.json"
"""The path inside of the package's .dist-info directory (PEP 770)."""


def libraries(document: str) -> dict[str, str]:
    """The version of each library of a CycloneDX document, by its name. Pure."""
    components = json.loads(document)["components"]
    return {component["name"]: component["version"] for component in components}


def bundled_libraries() -> dict[str, str]:
    """The version of each library inside the installed package, by its name.

    Returns {} if the package was not built or not installed.
    """
    try:
        document = distribution("millpond").read_text(BILL_OF_MATERIALS)
    except PackageNotFoundError:
        return {}
    return {} if document is None else libraries(document)
