#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "native/tf/row_node.h"

// The rules of ops. row_rules.cc has the ops that compute, row_shape_rules.cc the ops that arrange
// and select, and row_folds.cc the checks over several rows.

namespace millpond::tf {

// Returns output `output` of a node, none of whose inputs is kUnknown or kMixed.
using RowRule = RowValue (*)(const RowNode& node, int output);
using RowRules = std::unordered_map<std::string_view, RowRule>;

// The rules of row_shape_rules.cc for nodes that have an input with rows.
const RowRules& ShapeRules();
// The rules for nodes with any inputs. Their ops hand tensors through, or make rows of tensors
// without rows.
const RowRules& MakingRules();

// Returns an output of a node whose inputs depend on no row.
RowValue ApplyFree(const RowNode& node, int output);

// Returns `axis` counted from 0, because ops count a negative axis from the end. Returns nullopt if
// the value has no such axis, or if its rank is needed for that and not known.
std::optional<int> AxisOf(int64_t axis, const RowValue& value);
// Returns the one number of a value, such as an axis; nullopt if it is not known.
std::optional<int64_t> NumberOf(const RowValue& value);
// Returns true if no input except number `index` depends on rows or on their number.
bool AreOthersFixed(const RowNode& node, size_t index);

// Returns the elements of integers that depend on no row, if graphs use the op to compute shapes;
// nullopt otherwise.
std::optional<std::vector<Quantity>> ComputeIntegers(const RowNode& node);

// Returns how a node's result over several rows relates to the results of the rows alone, by the
// node's inputs.
Fold FoldOf(const RowNode& node);

// Rules that several ops share.
RowValue CombineRows(const RowNode& node, int output);  // elementwise, with broadcasting
RowValue KeepRows(const RowNode& node, int output);     // elementwise, of one input

}  // namespace millpond::tf
