#include "native/tf/failing_ops.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <unordered_set>

#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/types.h"

namespace millpond::tf {
namespace {

using Ops = std::unordered_set<std::string>;

}  // namespace

bool ChecksValues(const std::string& op) {
  static const auto* const kOps = new Ops{"Assert",
                                          "Bincount",
                                          "CheckNumerics",
                                          "CheckNumericsV2",
                                          "Cholesky",
                                          "DenseBincount",
                                          "DynamicStitch",
                                          "InvertPermutation",
                                          "MatrixInverse",
                                          "MatrixSolve",
                                          "MatrixTriangularSolve",
                                          "ParallelDynamicStitch",
                                          "ScatterNd",
                                          "SegmentMaxV2",
                                          "SegmentMinV2",
                                          "SegmentProdV2",
                                          "SegmentSumV2",
                                          "SparseSoftmaxCrossEntropyWithLogits",
                                          "SparseToDense",
                                          "TensorScatterAdd",
                                          "TensorScatterMax",
                                          "TensorScatterMin",
                                          "TensorScatterSub",
                                          "TensorScatterUpdate",
                                          "UnsortedSegmentMax",
                                          "UnsortedSegmentMin",
                                          "UnsortedSegmentProd",
                                          "UnsortedSegmentSum"};
  return kOps->count(op) > 0;
}

bool LooksUp(const std::string& op) {
  return op == "Gather" || op == "GatherV2" || op == "GatherNd" || op == "ResourceGather" ||
         op == "ResourceGatherNd";
}

bool ChecksSecondOperand(const tensorflow::NodeDef& node) {
  static const auto* const kOps =
      new Ops{"Div", "FloorDiv", "FloorMod", "Mod", "Pow", "TruncateDiv", "TruncateMod"};
  const auto type = node.attr().find("T");
  return kOps->count(node.op()) > 0 && type != node.attr().end() &&
         tensorflow::DataTypeIsInteger(type->second.type());
}

bool Shifts(const std::string& op) { return op == "LeftShift" || op == "RightShift"; }

bool LosesBits(const tensorflow::NodeDef& node) {
  const auto type = node.attr().find("T");
  if (type == node.attr().end() || !tensorflow::DataTypeIsInteger(type->second.type())) {
    return false;
  }
  // float32 has all integers of 16 bits.
  const bool is_wide = tensorflow::DataTypeSize(type->second.type()) > 2;
  return node.op() == "Mean" || (node.op() == "ResizeNearestNeighbor" && is_wide);
}

bool DrawsOtherNumbers(const std::string& op) {
  // Without those that are no drawing, like "StatelessIf".
  static constexpr std::string_view kStarts[] = {"StatelessMultinomial", "StatelessParameterized",
                                                 "StatelessRandom",      "StatelessSample",
                                                 "StatelessShuffle",     "StatelessTruncated"};
  return std::any_of(std::begin(kStarts), std::end(kStarts),
                     [&](std::string_view start) { return op.rfind(start, 0) == 0; });
}

}  // namespace millpond::tf
