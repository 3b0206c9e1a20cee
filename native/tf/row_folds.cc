#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>

#include "native/tf/row_rules.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/types.pb.h"

namespace millpond::tf {
namespace {

// Returns true if each input is fixed, or a fold of this kind.
bool AreAll(const RowNode& node, Fold fold) {
  return std::all_of(node.inputs().begin(), node.inputs().end(), [&](const RowValue& input) {
    return input.Has(RowValue::Kind::kFixed) || input.fold == fold;
  });
}

Fold OfReduction(const RowNode& node) {
  static const std::unordered_map<std::string_view, Fold> kFolds = {
      {"All", Fold::kAll}, {"Any", Fold::kAny}, {"Max", Fold::kLargest}, {"Min", Fold::kSmallest}};
  const auto found = kFolds.find(node.op());
  if (found == kFolds.end() || !AreOthersFixed(node, 0)) return Fold::kNone;
  const RowValue& reduced = node.input(0);
  return reduced.IsRows() || reduced.fold == found->second ? found->second : Fold::kNone;
}

// Returns the fold of whether `larger` is larger than `smaller`, or as large. With more rows that
// can only become false. NaN does not change that: it is never larger, and it is the largest and
// the smallest of all rows.
Fold OfComparison(const RowValue& larger, const RowValue& smaller) {
  const auto is = [](const RowValue& value, Fold fold) {
    return value.Has(RowValue::Kind::kFixed) || value.fold == fold;
  };
  return is(larger, Fold::kSmallest) && is(smaller, Fold::kLargest) ? Fold::kAll : Fold::kNone;
}

// Returns the fold of whether a list of places is empty.
Fold OfNone(const RowValue& a, const RowValue& b) {
  const RowValue& count = a.fold == Fold::kCount ? a : b;
  const RowValue& other = a.fold == Fold::kCount ? b : a;
  return count.fold == Fold::kCount && NumberOf(other) == 0 ? Fold::kAll : Fold::kNone;
}

// Returns true if a Cast keeps the order of numbers.
bool KeepsOrder(const RowNode& node) {
  const auto to = node.node().attr().find("DstT");
  const auto from = node.node().attr().find("SrcT");
  if (to == node.node().attr().end() || from == node.node().attr().end()) return false;
  const int wide = to->second.type();
  const bool is_integer =
      from->second.type() == tensorflow::DT_INT32 || from->second.type() == tensorflow::DT_INT64;
  return wide == tensorflow::DT_FLOAT || wide == tensorflow::DT_DOUBLE ||
         (wide == tensorflow::DT_INT64 && is_integer);
}

}  // namespace

Fold FoldOf(const RowNode& node) {
  const std::string& op = node.op();
  if (node.input_count() == 0) return Fold::kNone;
  const RowValue& first = node.input(0);
  if (op == "Identity" || (op == "Cast" && KeepsOrder(node))) return first.fold;
  if (op == "LogicalNot") {
    if (first.fold == Fold::kAll) return Fold::kAny;
    return first.fold == Fold::kAny ? Fold::kAll : Fold::kNone;
  }
  if (op == "LogicalAnd" || op == "LogicalOr") {
    for (const Fold fold : {Fold::kAll, Fold::kAny}) {
      if (AreAll(node, fold)) return fold;
    }
    return Fold::kNone;
  }
  if (op == "Where") return first.IsRows() ? Fold::kPlaces : Fold::kNone;
  if (op == "Size") return first.fold == Fold::kPlaces ? Fold::kCount : Fold::kNone;
  if (op == "Equal") return OfNone(first, node.input(1));
  if (op == "Greater" || op == "GreaterEqual") return OfComparison(first, node.input(1));
  if (op == "Less" || op == "LessEqual") return OfComparison(node.input(1), first);
  return OfReduction(node);
}

}  // namespace millpond::tf
