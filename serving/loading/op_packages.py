"""The PyPI packages that have custom ops, so that an error about a missing op names the package."""

from collections.abc import Sequence
from dataclasses import dataclass

TENSORFLOW = "2.21"
"""The TensorFlow version that op libraries must be built for: the C++ interface changes with each
minor version."""

MISSING_OPS_SHOWN_MAX = 10
"""The most missing ops of one package that an error lists, to keep the error readable."""


@dataclass(frozen=True, kw_only=True)
class OpPackage:
    """A package with ops whose names are in `ops` or begin with one of `prefixes`.

    `requirement` is the argument for pip. `newest_is_for` is set if the newest release was built for
    another TensorFlow, which it names: such a library does not load.
    """

    name: str
    requirement: str
    prefixes: tuple[str, ...] = ()
    ops: frozenset[str] = frozenset()
    newest_is_for: str = ""

    def has(self, op: str) -> bool:
        return op in self.ops or op.startswith(self.prefixes)


# The names that the libraries in PyPI's wheels registered in November 2026.
OP_PACKAGES = (
    OpPackage(
        name="tensorflow-text",
        requirement=f"tensorflow-text=={TENSORFLOW}.*",
        prefixes=(
            *("TFText>", "CaseFoldUTF8", "NormalizeUTF8", "FastBert", "FastWordpiece"),
            *("RegexSplit", "Sentencepiece", "SentenceFragments", "SplitMerge", "PhraseTokenize"),
            *("UnicodeScriptTokenize", "WhitespaceTokenize", "WordpieceTokenize"),
        ),
        ops=frozenset(
            {
                *("ConstrainedSequence", "FindSourceOffsets", "MaxSpanningTree", "RougeL"),
                "TokenizerFromLogits",
            }
        ),
    ),
    OpPackage(
        name="tensorflow-decision-forests",
        requirement="tensorflow-decision-forests",
        prefixes=("SimpleML",),
        newest_is_for="2.19",
    ),
    OpPackage(
        name="tensorflow-io", requirement="tensorflow-io", prefixes=("IO>",), newest_is_for="2.16"
    ),
    OpPackage(
        name="tensorflow-recommenders-addons",
        requirement="tensorflow-recommenders-addons",
        prefixes=("TFRA>",),
        newest_is_for="2.16",
    ),
    OpPackage(
        name="tensorflow-addons",
        requirement="tensorflow-addons",
        prefixes=("Addons>",),
        newest_is_for="2.15",
    ),
    OpPackage(
        name="tensorflow-compression-ops",
        requirement="tensorflow-compression-ops",
        prefixes=("EntropyEncode", "EntropyDecode", "RunLengthGamma", "UnboundedIndexRange"),
        ops=frozenset(
            {
                *("CreateRangeDecoder", "CreateRangeEncoder", "PmfToQuantizedCdf"),
                *("RunLengthDecode", "RunLengthEncode", "StochasticRound", "Y4MDataset"),
            }
        ),
        newest_is_for="2.17",
    ),
    OpPackage(
        name="tensorflow-quantum",
        requirement="tensorflow-quantum",
        prefixes=("Tfq",),
        newest_is_for="2.18",
    ),
    OpPackage(
        name="struct2tensor",
        requirement="struct2tensor",
        prefixes=("DecodeProtoMap", "DecodeProtoSparse", "EquiJoin"),
        ops=frozenset({"ParquetDataset", "RunLengthBefore"}),
        newest_is_for="2.17",
    ),
)


def package_of(op: str) -> OpPackage | None:
    """Returns the package that has the op, or None if no listed package has it."""
    return next((package for package in OP_PACKAGES if package.has(op)), None)


def missing_ops_message(missing_ops: Sequence[str]) -> str:
    """Returns an error that lists the ops by package, with the remedy for each package."""
    by_package: dict[OpPackage | None, list[str]] = {}
    for op in missing_ops:
        by_package.setdefault(package_of(op), []).append(op)
    return "; ".join(_reason(package, ops) for package, ops in by_package.items())


def _reason(package: OpPackage | None, ops: Sequence[str]) -> str:
    shown = ", ".join(ops[:MISSING_OPS_SHOWN_MAX])
    if len(ops) > MISSING_OPS_SHOWN_MAX:
        shown += f" and {len(ops) - MISSING_OPS_SHOWN_MAX} more"
    subject = f"op {shown} is" if len(ops) == 1 else f"ops {shown} are"
    return f"{subject} not registered: {_remedy(package)}"


def _remedy(package: OpPackage | None) -> str:
    if package is None:
        return (
            "start the server with the library of the op, --op_library=PATH, or with its pip "
            "package, --op_package=NAME"
        )
    if package.newest_is_for:
        return (
            f"it belongs to {package.name}, whose newest release known here is for TensorFlow "
            f"{package.newest_is_for}: install a release for {TENSORFLOW} and use "
            f"--op_package={package.name}"
        )
    return f"pip install {package.requirement} and use --op_package={package.name}"
