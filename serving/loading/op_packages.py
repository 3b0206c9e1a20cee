"""Which package on PyPI has which ops, so that a model that needs one says what to install."""

from collections.abc import Sequence
from dataclasses import dataclass

TENSORFLOW = "2.21"
"""The one that a library of ops must be built for: its C++ interface is of a minor version."""

MISSING_OPS_SHOWN_MAX = 10
"""Of one package: enough to recognize it, and a status that can be read."""


@dataclass(frozen=True, kw_only=True)
class OpPackage:
    """A package with ops: those whose names begin so, or are these.

    `requirement` is what pip is to be given. `newest_is_for`: the TensorFlow that the newest release
    was built for, where that is not this one; such a library does not load.
    """

    name: str
    requirement: str
    prefixes: tuple[str, ...] = ()
    ops: frozenset[str] = frozenset()
    newest_is_for: str = ""

    def has(self, op: str) -> bool:
        return op in self.ops or op.startswith(self.prefixes)


# Names as the libraries of the wheels on PyPI register them, November 2026.
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
    """The package that is known to have the op."""
    return next((package for package in OP_PACKAGES if package.has(op)), None)


def missing_ops_message(missing_ops: Sequence[str]) -> str:
    """The ops by the package that has them, and what to do."""
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
            "start the server with the library that has it, --op_library=PATH, or with the pip "
            "package, --op_package=NAME"
        )
    if package.newest_is_for:
        return (
            f"that is of {package.name}, whose newest release known here is for TensorFlow "
            f"{package.newest_is_for}: install one that is for {TENSORFLOW} and say "
            f"--op_package={package.name}"
        )
    return f"pip install {package.requirement} and --op_package={package.name}"
