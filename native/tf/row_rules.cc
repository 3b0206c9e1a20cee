#include "native/tf/row_rules.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/tensor_shape.pb.h"
#include "tensorflow/core/framework/types.pb.h"

namespace millpond::tf {
namespace {

using Kind = RowValue::Kind;

// Elementwise ops of one tensor. If they have further inputs, such as a table or bounds, these must
// be fixed.
constexpr std::string_view kKeepingOps[] = {"Abs",
                                            "Acos",
                                            "Acosh",
                                            "Angle",
                                            "AsString",
                                            "Asin",
                                            "Asinh",
                                            "Atan",
                                            "Atanh",
                                            "BesselI0e",
                                            "BesselI1e",
                                            "Bucketize",
                                            "Cast",
                                            "Ceil",
                                            "CheckNumerics",
                                            "ComplexAbs",
                                            "Conj",
                                            "Cos",
                                            "Cosh",
                                            "DecodeBase64",
                                            "Digamma",
                                            "Elu",
                                            "EncodeBase64",
                                            "EnsureShape",
                                            "Erf",
                                            "Erfc",
                                            "Erfinv",
                                            "Exp",
                                            "Expm1",
                                            "FakeQuantWithMinMaxArgs",
                                            "FakeQuantWithMinMaxVars",
                                            "Floor",
                                            "Imag",
                                            "Inv",
                                            "Invert",
                                            "IsFinite",
                                            "IsInf",
                                            "IsNan",
                                            "LeakyRelu",
                                            "Lgamma",
                                            "Log",
                                            "Log1p",
                                            "LogicalNot",
                                            "Ndtri",
                                            "Neg",
                                            "OnesLike",
                                            "PopulationCount",
                                            "Real",
                                            "Reciprocal",
                                            "RegexFullMatch",
                                            "RegexReplace",
                                            "Relu",
                                            "Relu6",
                                            "Rint",
                                            "Round",
                                            "Rsqrt",
                                            "Selu",
                                            "Sigmoid",
                                            "Sign",
                                            "Sin",
                                            "Sinh",
                                            "Softplus",
                                            "Softsign",
                                            "Sqrt",
                                            "Square",
                                            "StaticRegexFullMatch",
                                            "StaticRegexReplace",
                                            "StringLength",
                                            "StringLower",
                                            "StringStrip",
                                            "StringToHashBucket",
                                            "StringToHashBucketFast",
                                            "StringToHashBucketStrong",
                                            "StringToNumber",
                                            "StringUpper",
                                            "Tan",
                                            "Tanh",
                                            "UnicodeScript",
                                            "UnicodeTranscode",
                                            "ZerosLike"};

constexpr std::string_view kCombiningOps[] = {"Add",         "AddN",
                                              "AddV2",       "ApproximateEqual",
                                              "Atan2",       "Betainc",
                                              "BitwiseAnd",  "BitwiseOr",
                                              "BitwiseXor",  "ClipByValue",
                                              "Complex",     "Div",
                                              "DivNoNan",    "Equal",
                                              "FloorDiv",    "FloorMod",
                                              "Greater",     "GreaterEqual",
                                              "Igamma",      "Igammac",
                                              "LeftShift",   "Less",
                                              "LessEqual",   "LogicalAnd",
                                              "LogicalOr",   "Maximum",
                                              "Minimum",     "Mod",
                                              "Mul",         "MulNoNan",
                                              "NextAfter",   "NotEqual",
                                              "Polygamma",   "Pow",
                                              "RealDiv",     "RightShift",
                                              "SelectV2",    "SquaredDifference",
                                              "StringJoin",  "Sub",
                                              "Substr",      "TruncateDiv",
                                              "TruncateMod", "Xdivy",
                                              "Xlog1py",     "Xlogy",
                                              "Zeta"};

// Ops of images and signals: their first dimension counts separate examples. Their other inputs
// must be fixed: filters, sizes and statistics.
constexpr std::string_view kExampleOps[] = {"AvgPool",
                                            "AvgPool3D",
                                            "Conv",
                                            "Conv2D",
                                            "Conv3D",
                                            "DepthToSpace",
                                            "DepthwiseConv2dNative",
                                            "Dilation2D",
                                            "ExtractImagePatches",
                                            "ExtractVolumePatches",
                                            "LRN",
                                            "MaxPool",
                                            "MaxPool3D",
                                            "MaxPoolV2",
                                            "ResizeArea",
                                            "ResizeBicubic",
                                            "ResizeBilinear",
                                            "ResizeNearestNeighbor",
                                            "SpaceToDepth"};

constexpr std::string_view kReductions[] = {"All", "Any",  "EuclideanNorm", "Max", "Mean",
                                            "Min", "Prod", "ReduceJoin",    "Sum"};

// Ops that see all of their input at once.
constexpr std::string_view kMixingOps[] = {
    "Bincount",           "ListDiff",         "L2Loss",   "SetSize",
    "StringFormat",       "Unique",           "UniqueV2", "UniqueWithCounts",
    "UniqueWithCountsV2", "InvertPermutation"};

// Ops of the last dimension.
constexpr std::string_view kLastOps[] = {"FFT",  "IFFT",    "IRFFT", "LogSoftmax", "MatrixDiag",
                                         "RFFT", "Softmax", "TopK",  "TopKV2"};

// Ops of the colors in the last dimension.
constexpr std::string_view kColorOps[] = {"AdjustHue", "AdjustSaturation", "HSVToRGB", "RGBToHSV"};

// Ops of the matrices in the last two dimensions.
constexpr std::string_view kMatrixOps[] = {"Cholesky",         "LogMatrixDeterminant",
                                           "MatrixBandPart",   "MatrixDeterminant",
                                           "MatrixDiagPart",   "MatrixDiagPartV3",
                                           "MatrixInverse",    "Qr",
                                           "SelfAdjointEigV2", "Svd"};

// Ops that add up the entries with the same segment number.
constexpr std::string_view kSegmentOps[] = {
    "SegmentMax",         "SegmentMean",         "SegmentMin",
    "SegmentProd",        "SegmentSum",          "UnsortedSegmentMax",
    "UnsortedSegmentMin", "UnsortedSegmentProd", "UnsortedSegmentSum"};

// --- Elementwise ---

// Returns why the free value `other` may not be combined with rows that are `from_last` dimensions
// from the end. Returns "" if it may, because it lacks that dimension, or has one entry there for
// all rows.
std::string RefuseBeside(const RowValue& other, int from_last) {
  if (other.Has(Kind::kCount)) return "combines rows with the number of rows";
  if (!other.has_rank) return "combines rows with a tensor of unknown rank";
  if (other.rank() <= from_last || other.dims[other.dims.size() - 1 - from_last].Is(1)) return "";
  return "combines rows with a tensor that has a dimension in their place";
}

RowValue CombineUnranked(const RowNode& node, const RowValue& rows, int output) {
  for (const RowValue& input : node.inputs()) {
    if (&input == &rows) continue;
    if (input.Has(Kind::kCount)) return node.Mixed("combines rows with the number of rows");
    if (!input.has_rank || input.rank() > 0) {
      return node.Unknown("combines rows of an unknown rank with another tensor");
    }
  }
  return node.Rows(rows.axis, rows.factor, output);
}

// tf.compat.v1.where: a condition of one dimension selects whole rows.
RowValue SelectRows(const RowNode& node, int output) {
  const bool has_ranks = std::all_of(node.inputs().begin(), node.inputs().end(),
                                     [](const RowValue& input) { return input.has_rank; });
  if (!has_ranks || node.input_count() != 3) return node.Unknown("selects from an unknown rank");
  if (node.input(0).rank() != 1 || node.input(1).rank() <= 1) return CombineRows(node, output);
  for (const RowValue& input : node.inputs()) {
    if (input.IsRows() && input.axis == 0 && input.factor == node.input(0).factor) continue;
    if (node.input(0).IsFree()) return node.Unknown("selects rows by their place");
    return node.Unknown("selects between rows and a tensor without rows");
  }
  return node.Rows(0, node.input(0).factor, output);
}

RowValue ApplyElsewhere(const RowNode& node, int output) {
  if (!node.input(0).IsRows() || !AreOthersFixed(node, 0)) {
    return node.Unknown("takes rows in another place than its first input");
  }
  if (node.input(0).axis != 0) return node.Unknown("takes rows that are not the first dimension");
  return node.Rows(0, node.input(0).factor, output);
}

// LookupTableFind, whose second input has the keys.
RowValue LookUp(const RowNode& node, int output) {
  if (node.input_count() < 2 || !node.input(1).IsRows() || !AreOthersFixed(node, 1)) {
    return node.Unknown("looks up something else than rows");
  }
  RowValue value = node.Rows(node.input(1).axis, node.input(1).factor, output);
  const auto& of_table = node.input(0).content;
  const bool has_scalars = of_table != nullptr && of_table->has_rank && of_table->dims.empty();
  if (value.IsRows() && !value.has_rank && node.input(1).has_rank && has_scalars) {
    value.dims = node.input(1).dims;
    value.has_rank = true;
  }
  return value;
}

// --- Linear algebra ---

RowValue MultiplyMatrices(const RowNode& node, int output) {
  const RowValue& a = node.input(0);
  const RowValue& b = node.input(1);
  if (a.IsRows() && b.IsRows()) return node.Mixed("multiplies rows with other rows");
  const RowValue& rows = a.IsRows() ? a : b;
  if (!AreOthersFixed(node, a.IsRows() ? 0 : 1)) {
    return node.Mixed("multiplies rows with the number of rows");
  }
  const int kept =
      a.IsRows() ? (node.Flag("transpose_a") ? 1 : 0) : (node.Flag("transpose_b") ? 0 : 1);
  if (rows.axis != kept) return node.Mixed("adds over the rows");
  return node.Rows(a.IsRows() ? 0 : 1, rows.factor, output);
}

// Batches of matrices: the dimensions before the last two are broadcast.
RowValue MultiplyBatches(const RowNode& node, int output) {
  const RowValue& a = node.input(0);
  const RowValue& b = node.input(1);
  if (!a.has_rank || !b.has_rank) return node.Unknown("multiplies matrices of unknown rank");
  const int rank = std::max(a.rank(), b.rank());
  if (a.IsRows() && b.IsRows()) {
    const bool are_beside = a.FromLast() == b.FromLast() && a.FromLast() >= 2;
    if (!are_beside) return node.Mixed("multiplies rows with other rows");
    if (a.factor != b.factor) return node.Unknown("multiplies rows of different sizes");
    return node.Rows(rank - 1 - a.FromLast(), a.factor, output);
  }
  const RowValue& rows = a.IsRows() ? a : b;
  const RowValue& other = a.IsRows() ? b : a;
  const int from_last = rows.FromLast();
  if (from_last >= 2) {
    std::string refusal = RefuseBeside(other, from_last);
    if (!refusal.empty()) return node.Unknown(std::move(refusal));
    return node.Rows(rank - 1 - from_last, rows.factor, output);
  }
  if (!other.Has(Kind::kFixed)) return node.Mixed("multiplies rows with the number of rows");
  const bool is_flipped = a.IsRows() ? node.Flag("adj_x") : node.Flag("adj_y");
  const int kept = a.IsRows() == is_flipped ? 0 : 1;
  if (from_last != kept) return node.Mixed("adds over the rows");
  return node.Rows(rank - 1 - (a.IsRows() ? 1 : 0), rows.factor, output);
}

// The labels of one term of an einsum, one for each dimension. Dimensions of "..." are numbered
// from the last one.
std::optional<std::vector<std::string>> LabelsOf(const std::string& term, int rank) {
  std::vector<std::string> labels;
  const size_t dots = term.find("...");
  const int named = static_cast<int>(term.size()) - (dots == std::string::npos ? 0 : 3);
  if (rank < named || (dots == std::string::npos && rank != named)) return std::nullopt;
  for (size_t at = 0; at < term.size(); ++at) {
    if (at != dots) {
      labels.emplace_back(1, term[at]);
      continue;
    }
    for (int left = rank - named; left > 0; --left) labels.push_back("." + std::to_string(left));
    at += 2;
  }
  return labels;
}

struct EinsumTerms {
  std::vector<std::string> inputs;
  std::string output;
};

std::optional<EinsumTerms> TermsOf(std::string equation) {
  equation.erase(std::remove(equation.begin(), equation.end(), ' '), equation.end());
  const size_t arrow = equation.find("->");
  if (arrow == std::string::npos) return std::nullopt;
  EinsumTerms terms{{}, equation.substr(arrow + 2)};
  std::string left = equation.substr(0, arrow);
  for (size_t comma = left.find(','); comma != std::string::npos; comma = left.find(',')) {
    terms.inputs.push_back(left.substr(0, comma));
    left.erase(0, comma + 1);
  }
  terms.inputs.push_back(left);
  return terms;
}

using Labels = std::vector<std::string>;

int CountDots(const Labels& labels) {
  return static_cast<int>(std::count_if(
      labels.begin(), labels.end(), [](const std::string& label) { return label.front() == '.'; }));
}

// Returns the labels of each input; nullopt if an input's rank is unknown, or does not fit its
// labels.
std::optional<std::vector<Labels>> LabelsOfInputs(const RowNode& node, const EinsumTerms& terms) {
  std::vector<Labels> all;
  for (size_t i = 0; i < node.input_count(); ++i) {
    const RowValue& input = node.input(i);
    const auto labels =
        input.has_rank ? LabelsOf(terms.inputs[i], input.rank()) : std::optional<Labels>();
    if (!labels) return std::nullopt;
    all.push_back(*labels);
  }
  return all;
}

// Einsum: the rows keep their label from the inputs to the output.
RowValue SumProducts(const RowNode& node, int output) {
  const auto terms = TermsOf(node.Text("equation"));
  if (!terms || terms->inputs.size() != node.input_count()) return node.Unknown("has no equation");
  const auto all = LabelsOfInputs(node, *terms);
  if (!all) return node.Unknown("multiplies tensors of unknown rank");
  std::string row_label;
  int64_t factor = 1;
  int dots_count = 0;
  for (size_t i = 0; i < node.input_count(); ++i) {
    const RowValue& input = node.input(i);
    const Labels& labels = (*all)[i];
    dots_count = std::max(dots_count, CountDots(labels));
    if (input.Has(Kind::kCount)) return node.Mixed("multiplies rows with the number of rows");
    if (!input.IsRows()) continue;
    const std::string& label = labels[static_cast<size_t>(input.axis)];
    if (!row_label.empty() && label != row_label) {
      return node.Mixed("multiplies rows with other rows");
    }
    if (std::count(labels.begin(), labels.end(), label) > 1) return node.Mixed("takes a diagonal");
    if (!row_label.empty() && input.factor != factor) {
      return node.Unknown("multiplies rows of different sizes");
    }
    row_label = label;
    factor = input.factor;
  }
  for (size_t i = 0; i < node.input_count(); ++i) {
    const Labels& labels = (*all)[i];
    if (!node.input(i).IsRows() && std::count(labels.begin(), labels.end(), row_label) > 0) {
      return node.Unknown("multiplies rows with a tensor that has a dimension in their place");
    }
  }
  const bool has_dots = terms->output.find("...") != std::string::npos;
  const int rank = static_cast<int>(terms->output.size()) + (has_dots ? dots_count - 3 : 0);
  const auto labels = LabelsOf(terms->output, rank);
  if (!labels) return node.Unknown("has an equation of another rank");
  const auto found = std::find(labels->begin(), labels->end(), row_label);
  if (found == labels->end()) return node.Mixed("adds over the rows");
  if (std::count(found, labels->end(), row_label) > 1) return node.Unknown("makes a diagonal");
  return node.Rows(static_cast<int>(found - labels->begin()), factor, output);
}

RowValue AddBias(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  if (!rows.IsRows() || !AreOthersFixed(node, 0)) return node.Unknown("adds rows as a bias");
  if (!rows.has_rank) return node.Unknown("adds a bias to an unknown rank");
  const bool is_first = node.Text("data_format") == "NCHW";
  const int channel = is_first ? 1 : rows.rank() - 1;
  if (rows.axis == channel) return node.Unknown("adds a bias for each row");
  return node.Rows(rows.axis, rows.factor, output);
}

RowValue Normalize(const RowNode& node, int output) {
  if (node.Flag("is_training")) return node.Mixed("normalizes by the mean of the rows");
  if (output == 0) return ApplyElsewhere(node, 0);
  return node.Unknown("has further outputs that are not followed");
}

// Conv2DBackpropInput as a transposed convolution, whose last input has the rows.
RowValue TransposeConvolution(const RowNode& node, int output) {
  const bool is_filter_fixed = node.input_count() == 3 && node.input(1).Has(Kind::kFixed);
  const auto& sizes = node.input(0).elements;
  // If all sizes are given, the first is that of the rows. If there are two, they are those of an
  // image.
  const bool has_all = sizes && sizes->size() >= 4;
  const bool grows =
      node.input(0).Has(Kind::kCount) &&
      (!has_all || std::any_of(sizes->begin() + 1, sizes->end(),
                               [](const Quantity& size) { return size.DependsOnRows(); }));
  if (grows) return node.Unknown("may make sizes of the number of rows");
  const RowValue& rows = node.input(node.input_count() - 1);
  if (!is_filter_fixed || !node.input(0).IsFree() || !rows.IsRows() || rows.axis != 0) {
    return node.Unknown("takes rows in another place than its last input");
  }
  return node.Rows(0, rows.factor, output);
}

// --- Reductions ---

RowValue Reduce(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  if (!rows.IsRows() || node.input_count() < 2) return node.Unknown("reduces along axes of rows");
  const auto axes = node.input(1).Numbers();
  if (!axes) return node.Unknown("reduces along axes that are not known");
  std::set<int> reduced;
  for (const int64_t axis : *axes) {
    const auto found = AxisOf(axis, rows);
    if (!found) return node.Unknown("reduces an unknown rank");
    if (*found == rows.axis) return node.Mixed("reduces over the rows");
    reduced.insert(*found);
  }
  const auto before =
      std::count_if(reduced.begin(), reduced.end(), [&](int axis) { return axis < rows.axis; });
  const int shift = node.Flag("keep_dims") ? 0 : static_cast<int>(before);
  return node.Rows(rows.axis - shift, rows.factor, output);
}

RowValue FindLargest(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  const auto number = node.input_count() < 2 ? std::nullopt : NumberOf(node.input(1));
  const auto axis = number ? AxisOf(*number, rows) : std::nullopt;
  if (!rows.IsRows() || !axis) return node.Unknown("compares along an axis that is not known");
  if (*axis == rows.axis) return node.Mixed("compares the rows");
  return node.Rows(rows.axis - (*axis < rows.axis ? 1 : 0), rows.factor, output);
}

RowValue AlongLast(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  if (!rows.IsRows()) return node.Unknown("takes rows in another place than its first input");
  if (!rows.has_rank) return node.Unknown("works along the last dimension of an unknown rank");
  if (rows.axis == rows.rank() - 1) return node.Mixed("works along the rows");
  if (!AreOthersFixed(node, 0)) return node.Unknown("works by the rows or by their number");
  return node.Rows(rows.axis, rows.factor, output);
}

// MatrixDiagV3. If its second input asks for a band of several diagonals, there is a dimension for
// them.
RowValue MakeMatrices(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  const auto band = node.input_count() < 2 ? std::nullopt : node.input(1).Numbers();
  const bool is_one_diagonal = band && !band->empty() && band->front() == band->back();
  const bool is_beside = rows.IsRows() && rows.has_rank && rows.axis == rows.rank() - 2;
  if (is_beside && !is_one_diagonal) return node.Unknown("may take the rows for diagonals");
  return AlongLast(node, output);
}

// Works on the last `count` dimensions.
RowValue OfLast(const RowNode& node, int count, int output) {
  const RowValue& rows = node.input(0);
  if (!rows.IsRows() || !AreOthersFixed(node, 0))
    return node.Unknown("takes rows in another place");
  if (!rows.has_rank) return node.Unknown("works on the last dimensions of an unknown rank");
  if (rows.axis >= rows.rank() - count) return node.Mixed("works along the rows");
  return node.Rows(rows.axis, rows.factor, output);
}
RowValue OfMatrices(const RowNode& node, int output) { return OfLast(node, 2, output); }
// AdjustContrastv2 takes the mean of each image.
RowValue OfImages(const RowNode& node, int output) { return OfLast(node, 3, output); }

// CombinedNonMaxSuppression: boxes and their scores, of one image each.
RowValue SelectBoxes(const RowNode& node, int output) {
  const RowValue& boxes = node.input(0);
  const RowValue& scores = node.input(1);
  bool are_rows = boxes.IsRows() && scores.IsRows() && boxes.axis == 0 && scores.axis == 0 &&
                  boxes.factor == scores.factor;
  for (size_t i = 2; i < node.input_count(); ++i) {
    are_rows = are_rows && node.input(i).Has(Kind::kFixed);
  }
  return are_rows ? node.Rows(0, boxes.factor, output) : node.Unknown("selects of other rows");
}

RowValue Accumulate(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  const auto number = node.input_count() < 2 ? std::nullopt : NumberOf(node.input(1));
  const auto axis = number ? AxisOf(*number, rows) : std::nullopt;
  if (!rows.IsRows() || !axis) return node.Unknown("accumulates along an axis that is not known");
  if (*axis == rows.axis) return node.Mixed("accumulates over the rows");
  return node.Rows(rows.axis, rows.factor, output);
}

// Counts the integers: of each row if there are two dimensions, and otherwise of all rows.
RowValue CountIntegers(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  if (!rows.IsRows() || rows.axis != 0) return node.Unknown("counts something else than rows");
  if (!rows.has_rank) return node.Unknown("counts an unknown rank");
  if (rows.rank() != 2) return node.Mixed("counts over the rows");
  if (!node.input(1).Has(Kind::kFixed)) return node.Unknown("counts up to the number of rows");
  const RowValue& weights = node.input(node.input_count() - 1);
  const bool are_rows = weights.IsRows() && weights.axis == 0 && weights.factor == rows.factor;
  const bool are_none = weights.Has(Kind::kFixed) && weights.has_rank &&
                        std::any_of(weights.dims.begin(), weights.dims.end(),
                                    [](const Quantity& dim) { return dim.Is(0); });
  if (!are_rows && !are_none) return node.Unknown("has weights of another kind");
  return node.Rows(0, rows.factor, output);
}

// Adds up the rows of each segment.
RowValue ReduceSegments(const RowNode& node, int) {
  if (!node.input(0).IsRows() || node.input(0).axis != 0)
    return node.Unknown("adds up parts of rows");
  // If each row has its own segment number, each row is a segment of its own.
  const bool may_be_rows = node.input(1).Has(Kind::kCount);
  return may_be_rows ? node.Unknown("adds up segments of rows")
                     : node.Mixed("adds up segments of rows");
}

// Rounds values to a range, which it finds from all values unless it is given.
RowValue RoundToRange(const RowNode& node, int output) {
  if (!node.Flag("range_given")) return node.Mixed("looks for the largest value of all rows");
  const int64_t axis = node.Integer("axis");  // of a range for each entry, if it is not -1
  if (axis >= 0 && axis == node.input(0).axis) return node.Unknown("has a range for each row");
  return KeepRows(node, output);
}

RowValue MixAll(const RowNode& node, int) {
  return node.Mixed("compares the rows with each other");
}

// tf.Example messages, each of which is a row. Sparse and ragged features count as unknown here.
RowValue ParseExamples(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  const auto [first, count] = node.OutputsOf("dense_values");
  if (!rows.IsRows() || rows.axis != 0 || !AreOthersFixed(node, 0)) {
    return node.Unknown("parses something else than rows");
  }
  if (output < first || output >= first + count) {
    return node.Unknown("makes sparse or ragged features, which are not followed");
  }
  RowValue value = node.Rows(0, rows.factor, output);
  for (size_t i = 1; i < value.dims.size(); ++i) {
    if (value.dims[i].kind != Quantity::Kind::kKnown) {
      return node.Unknown("pads features to the longest one of the rows");
    }
  }
  if (!value.has_rank) return node.Unknown("makes features of an unknown rank");
  return value;
}

RowRules MakeRules() {
  RowRules rules = ShapeRules();
  for (const std::string_view op : kKeepingOps) rules[op] = KeepRows;
  for (const std::string_view op : kCombiningOps) rules[op] = CombineRows;
  for (const std::string_view op : kExampleOps) rules[op] = ApplyElsewhere;
  for (const std::string_view op : kReductions) rules[op] = Reduce;
  for (const std::string_view op : kMixingOps) rules[op] = MixAll;
  for (const std::string_view op : kLastOps) rules[op] = AlongLast;
  for (const std::string_view op : kColorOps) rules[op] = AlongLast;
  for (const std::string_view op : kMatrixOps) rules[op] = OfMatrices;
  for (const std::string_view op : kSegmentOps) rules[op] = ReduceSegments;
  rules.insert({{"Select", SelectRows},
                {"MatMul", MultiplyMatrices},
                {"BatchMatMul", MultiplyBatches},
                {"BatchMatMulV2", MultiplyBatches},
                {"BatchMatMulV3", MultiplyBatches},
                {"Einsum", SumProducts},
                {"BiasAdd", AddBias},
                {"FusedBatchNorm", Normalize},
                {"FusedBatchNormV2", Normalize},
                {"FusedBatchNormV3", Normalize},
                {"Conv2DBackpropInput", TransposeConvolution},
                {"Conv3DBackpropInputV2", TransposeConvolution},
                {"DepthwiseConv2dNativeBackpropInput", TransposeConvolution},
                {"MatrixDiagV3", MakeMatrices},
                {"AdjustContrastv2", OfImages},
                {"CombinedNonMaxSuppression", SelectBoxes},
                {"ArgMax", FindLargest},
                {"ArgMin", FindLargest},
                {"QuantizeAndDequantizeV2", RoundToRange},
                {"QuantizeAndDequantizeV3", RoundToRange},
                {"QuantizeAndDequantizeV4", RoundToRange},
                {"Cumsum", Accumulate},
                {"Cumprod", Accumulate},
                {"CumulativeLogsumexp", Accumulate},
                {"DenseBincount", CountIntegers},
                {"ParseExample", ParseExamples},
                {"ParseExampleV2", ParseExamples},
                {"LookupTableFind", LookUp},
                {"LookupTableFindV2", LookUp}});
  return rules;
}

const RowRules& Rules() {
  static const auto* const kRules = new RowRules(MakeRules());
  return *kRules;
}

// --- Values that depend on no row ---

bool StartsWith(const std::string& text, std::string_view start) {
  return text.compare(0, start.size(), start) == 0;
}

// The stateful ops whose result is the same in each run, because no request writes to the variables
// and tables that they read (variable_writes.h).
bool OnlyReads(const std::string& op) {
  static const auto* const kOps =
      new std::set<std::string_view>{"VarHandleOp",
                                     "_VarHandlesOp",
                                     "ReadVariableOp",
                                     "_ReadVariablesOp",
                                     "ResourceGather",
                                     "ResourceGatherNd",
                                     "VariableShape",
                                     "VarIsInitializedOp",
                                     "Variable",
                                     "VariableV2",
                                     "IsVariableInitialized",
                                     "HashTable",
                                     "HashTableV2",
                                     "MutableHashTable",
                                     "MutableHashTableV2",
                                     "MutableDenseHashTableV2",
                                     "AnonymousHashTable",
                                     "LookupTableFind",
                                     "LookupTableFindV2",
                                     "LookupTableSize",
                                     "LookupTableSizeV2",
                                     "LookupTableExportV2",
                                     "ReadFile",
                                     "StatelessRandomGetKeyCounter",
                                     "BoostedTreesEnsembleResourceHandleOp"};
  return kOps->count(op) > 0;
}

// Returns true if each run draws other numbers.
bool DrawsNumbers(const RowNode& node) {
  static constexpr std::string_view kStarts[] = {"Random",          "Stateful",      "Multinomial",
                                                 "TruncatedNormal", "Parameterized", "Rng"};
  // Checked by the seed, because some ops with a seed are not marked as stateful:
  // FractionalMaxPool, for example.
  if (node.node().attr().count("seed") > 0) return true;
  return node.is_stateful() &&
         std::any_of(std::begin(kStarts), std::end(kStarts),
                     [&](std::string_view start) { return StartsWith(node.op(), start); });
}

// Returns true for ops that are not marked as stateful, and depend on other runs or on the time.
bool DependsOnOtherRuns(const RowNode& node) {
  static constexpr std::string_view kOps[] = {"Batch", "GetDeadline", "Unbatch"};
  return std::find(std::begin(kOps), std::end(kOps), node.op()) != std::end(kOps);
}

// Returns true if the node has functions. Functions that the analysis follows never reach a rule.
bool CallsFunctions(const RowNode& node) {
  const auto& attributes = node.node().attr();
  return std::any_of(attributes.begin(), attributes.end(), [](const auto& attribute) {
    return attribute.second.has_func() || attribute.second.list().func_size() > 0;
  });
}

// Returns true if the numbers that are drawn for an entry depend on its place. Ops like
// "StatelessIf" never reach the rules.
bool DrawsByPlace(const RowNode& node) {
  return DrawsNumbers(node) || StartsWith(node.op(), "Stateless");
}

// Returns what the rules need to know of a handle's object: the shape of a variable, or of a
// table's values.
std::shared_ptr<const RowValue> ContentOf(const RowNode& node) {
  RowValue content;
  if (node.op() == "HashTable" || node.op() == "HashTableV2" || node.op() == "MutableHashTableV2") {
    content.has_rank = true;
    return std::make_shared<const RowValue>(std::move(content));
  }
  const auto shape = node.node().attr().find("shape");
  const auto dtype = node.node().attr().find("dtype");
  const bool is_variable = node.op() == "VarHandleOp" && shape != node.node().attr().end() &&
                           dtype != node.node().attr().end();
  if (!is_variable || shape->second.shape().unknown_rank()) return nullptr;
  content.dtype = dtype->second.type();
  content.has_rank = true;
  for (const auto& dim : shape->second.shape().dim()) {
    content.dims.push_back(dim.size() >= 0 ? Quantity::Known(dim.size()) : Quantity());
  }
  return std::make_shared<const RowValue>(std::move(content));
}

// Returns the result of a Maximum or Minimum of a number and an unknown value. A single size that
// is bounded from both sides may then be fixed; the length of a vector could still differ. Returns
// nullopt for anything else.
std::optional<RowValue> Bound(const RowNode& node, const RowValue& failed) {
  const bool is_larger = node.op() == "Maximum";
  if ((!is_larger && node.op() != "Minimum") || node.input_count() != 2) return std::nullopt;
  const auto number = NumberOf(node.input(&failed == &node.input(0) ? 1 : 0));
  const bool is_scalar = failed.has_rank && failed.rank() == 0;
  if (!number || !is_scalar) return std::nullopt;
  if (is_larger) {
    RowValue bounded = RowValue::Of(failed.kind, *failed.cause);
    bounded.at_least = number;
    return bounded;
  }
  if (!failed.at_least || *failed.at_least < *number) return std::nullopt;
  RowValue value = node.Free(0);
  value.kind = Kind::kFixed;
  return value;
}

// Ops that read only the shape of a tensor.
bool ReadsShape(const std::string& op) {
  return op == "Shape" || op == "ShapeN" || op == "Size" || op == "Rank";
}

RowValue ReadShape(const RowNode& node, int output) {
  const RowValue& input = node.input(static_cast<size_t>(output));
  RowValue value;
  value.dtype = node.Free(output).dtype;
  value.has_rank = true;
  if (!input.has_rank) {
    if (input.Has(Kind::kFixed)) return node.Free(output);
    if (input.cause != nullptr) return RowValue::Of(input.kind, *input.cause);
    return node.Unknown("reads the shape of a tensor of unknown rank");
  }
  if (node.op() == "Rank") {
    value.elements = std::vector<Quantity>{Quantity::Known(input.rank())};
    return value;
  }
  for (const Quantity& dim : input.dims) {
    // A size that is not a number may come from the op that made the tensor.
    const bool is_sized = dim.kind == Quantity::Kind::kKnown;
    if (!is_sized && input.cause != nullptr) return RowValue::Of(input.kind, *input.cause);
    if (dim.DependsOnRows()) value.kind = Kind::kCount;
  }
  if (node.op() == "Size") {
    Quantity size = Quantity::Known(1);
    for (const Quantity& dim : input.dims) size = size * dim;
    value.elements = std::vector<Quantity>{size};
  } else {
    value.dims = {Quantity::Known(input.rank())};
    value.elements = input.dims;
  }
  return value;
}

// Returns true if a number of rows is compared with itself.
bool HoldsForAnyRows(const RowNode& node) {
  const std::string& op = node.op();
  if (op != "Equal" && op != "GreaterEqual" && op != "LessEqual") return false;
  const auto& a = node.input(0).elements;
  const auto& b = node.input(1).elements;
  if (!a || !b || *a != *b) return false;
  // If the shapes differ, they are broadcast, and elements at other places are compared.
  if (!node.input(0).has_rank || !node.input(1).has_rank) return false;
  if (node.input(0).dims != node.input(1).dims) return false;
  return std::all_of(a->begin(), a->end(), [](const Quantity& each) {
    return each.value > 0 &&
           (each.kind == Quantity::Kind::kKnown || each.kind == Quantity::Kind::kRows);
  });
}

}  // namespace

RowValue ApplyFree(const RowNode& node, int output) {
  if (CallsFunctions(node)) return node.Unknown("calls functions that are not followed");
  if (DrawsNumbers(node)) return node.Mixed("draws random numbers");
  if (DependsOnOtherRuns(node)) return node.Unknown("depends on what else runs");
  RowValue value = node.Free(output);
  if (HoldsForAnyRows(node)) value.kind = Kind::kFixed;
  const bool is_handle = value.dtype == tensorflow::DT_RESOURCE;
  if (node.is_stateful() && !OnlyReads(node.op()) && !is_handle)
    return node.Unknown("keeps a state");
  if (value.Has(Kind::kCount) && DrawsByPlace(node)) {
    return node.Mixed("draws random numbers for the rows");
  }
  if (output > 0) return value;
  if (is_handle) value.content = ContentOf(node);
  auto elements = ComputeIntegers(node);
  if (!elements) return value;
  const auto depends_on_rows = [](const Quantity& each) { return each.DependsOnRows(); };
  const bool has_rows = std::any_of(elements->begin(), elements->end(), depends_on_rows);
  // A reshape may give a fixed value a shape that depends on the number of rows.
  const bool is_shaped_by_rows =
      value.Has(Kind::kCount) &&
      (!value.has_rank || std::any_of(value.dims.begin(), value.dims.end(), depends_on_rows));
  value.kind = has_rows || is_shaped_by_rows ? Kind::kCount : Kind::kFixed;
  value.elements = std::move(elements);
  return value;
}

std::optional<int> AxisOf(int64_t axis, const RowValue& value) {
  if (axis < 0 && !value.has_rank) return std::nullopt;
  if (axis < 0) axis += value.rank();
  const bool is_beyond = value.has_rank && axis >= value.rank();
  if (axis < 0 || is_beyond || axis > std::numeric_limits<int16_t>::max()) return std::nullopt;
  return static_cast<int>(axis);
}

std::optional<int64_t> NumberOf(const RowValue& value) {
  const auto numbers = value.Numbers();
  if (!numbers || numbers->size() != 1) return std::nullopt;
  return numbers->front();
}

bool AreOthersFixed(const RowNode& node, size_t index) {
  for (size_t i = 0; i < node.input_count(); ++i) {
    if (i != index && !node.input(i).Has(Kind::kFixed)) return false;
  }
  return true;
}

RowValue KeepRows(const RowNode& node, int output) {
  const RowValue& rows = node.input(0);
  if (!rows.IsRows() || rows.is_list || !AreOthersFixed(node, 0)) {
    return node.Unknown("takes rows in another place than its first input");
  }
  RowValue value = node.Rows(rows.axis, rows.factor, output);
  if (!value.IsRows() || value.has_rank || !rows.has_rank) return value;
  value.dims = rows.dims;
  value.has_rank = true;
  return value;
}

RowValue CombineRows(const RowNode& node, int output) {
  const RowValue* first = nullptr;
  for (const RowValue& input : node.inputs()) {
    if (input.is_list) return node.Unknown("combines lists of tensors");
    if (first == nullptr && input.IsRows()) first = &input;
  }
  if (node.input_count() == 1) return KeepRows(node, output);
  if (!first->has_rank) return CombineUnranked(node, *first, output);
  int rank = 0;
  for (const RowValue& input : node.inputs()) {
    rank = std::max(rank, input.rank());
    if (input.IsRows()) {
      if (!input.has_rank) return node.Unknown("combines rows of an unknown rank");
      if (input.FromLast() != first->FromLast()) return node.Mixed("combines rows with other rows");
      if (input.factor != first->factor) return node.Unknown("combines rows of different sizes");
      continue;
    }
    std::string refusal = RefuseBeside(input, first->FromLast());
    if (refusal.empty()) continue;
    if (input.Has(Kind::kCount)) return node.Mixed(std::move(refusal));
    return node.Unknown(std::move(refusal));
  }
  return node.Rows(rank - 1 - first->FromLast(), first->factor, output);
}

namespace {

// A value with a cause keeps nothing of its shape, except that it is a scalar (for Bound).
void MarkScalar(const RowNode& node, int output, RowValue* value) {
  if (value->cause == nullptr) return;
  if (output == 0) value->fold = FoldOf(node);
  const RowValue shaped = node.Free(output);
  value->has_rank = shaped.has_rank && shaped.rank() == 0;
  value->dims.clear();
}

}  // namespace

std::vector<RowValue> ApplyRule(const RowNode& node) {
  std::vector<RowValue> outputs;
  const RowValue* failed = nullptr;
  bool has_rows = false;
  bool has_list = false;
  for (const RowValue& input : node.inputs()) {
    has_rows = has_rows || input.IsRows();
    has_list = has_list || input.is_list;
    const bool is_worse =
        input.cause != nullptr &&
        (failed == nullptr || (input.Has(Kind::kMixed) && !failed->Has(Kind::kMixed)));
    if (is_worse) failed = &input;
  }
  const auto rule = Rules().find(node.op());
  const auto making = MakingRules().find(node.op());
  for (size_t i = 0; i < node.output_count(); ++i) {
    const int output = static_cast<int>(i);
    if (ReadsShape(node.op()) && i < node.input_count()) {
      outputs.push_back(ReadShape(node, output));
    } else if (failed != nullptr) {
      const auto bounded = Bound(node, *failed);
      outputs.push_back(bounded ? *bounded : RowValue::Of(failed->kind, *failed->cause));
    } else if (making != MakingRules().end()) {
      outputs.push_back(making->second(node, output));
    } else if (has_list) {
      outputs.push_back(node.Unknown("takes a list of tensors"));
    } else if (rule != Rules().end() && has_rows) {
      outputs.push_back(rule->second(node, output));
    } else if (has_rows && DrawsByPlace(node)) {
      outputs.push_back(node.Mixed("draws random numbers for the rows"));
    } else if (has_rows) {
      outputs.push_back(node.Unknown("is not an op that the analysis knows"));
    } else {
      outputs.push_back(ApplyFree(node, output));
    }
    MarkScalar(node, output, &outputs.back());
  }
  return outputs;
}

}  // namespace millpond::tf
